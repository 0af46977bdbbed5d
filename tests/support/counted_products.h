#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <memory>
#include <string>

namespace oslo::test {

/// Floating-point operations of the products of matrices that this thread makes, in backward and
/// elsewhere.
class CountedProducts {
 public:
  CountedProducts() {
    flops() = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&count).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedProducts() { at::removeCallback(handle_); }
  CountedProducts(const CountedProducts&) = delete;
  CountedProducts& operator=(const CountedProducts&) = delete;

  double made() const { return flops(); }

 private:
  static double& flops() {
    static thread_local double sum = 0;
    return sum;
  }

  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    const std::string name = function.name();
    const bool sum = name == "aten::addmm" || name == "aten::baddbmm";
    if (!sum && name != "aten::mm" && name != "aten::bmm") return nullptr;
    const size_t first = sum ? 1 : 0;
    const at::Tensor& a = function.inputs()[first].toTensor();
    const at::Tensor& b = function.inputs()[first + 1].toTensor();
    flops() += 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
    return nullptr;
  }

  at::CallbackHandle handle_;
};

}  // namespace oslo::test
