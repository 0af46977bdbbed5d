// The pointwise operators that models call most enter here instead of the door: with their own
// signatures, so that nothing is boxed and nothing allocated but the result.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <string>

#include "parallelizers/placement/door/door.h"
#include "parallelizers/placement/engine/alike.h"

namespace oslo {
namespace {

bool take(Alike& alike, const at::Tensor& operand) {
  return alike.take(operand);
}
template <typename Other>
bool take(Alike&, const Other&) {
  return true;
}

const at::Tensor& part_of(const at::Tensor& operand) {
  const PlacedTensorImpl* const impl = placed_impl(operand);
  return impl == nullptr ? operand : impl->value().local;
}
template <typename Other>
const Other& part_of(const Other& other) {
  return other;
}

template <typename Operator, typename Signature = typename Operator::schema>
struct Lean;

template <typename Operator, typename... Arguments>
struct Lean<Operator, at::Tensor(Arguments...)> {
  static at::Tensor run(Arguments... arguments) {
    Alike alike;
    if ((take(alike, arguments) && ...) && alike.holds()) {
      // No part has the placed key: the call passes the door by itself.
      return wrap_like({Operator::call(part_of(arguments)...), alike.first().value().layout},
                       alike.first());
    }
    static const c10::OperatorHandle handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, Operator::overload_name);
    return c10::impl::BoxedKernelWrapper<at::Tensor(Arguments...)>::call(
        c10::BoxedKernel::makeFromFunction<&door>(), handle, c10::DispatchKeySet(kPlacedKey),
        arguments...);
  }
};

template <typename... Operators>
void register_lean(torch::Library& library) {
  const auto full_name = [](std::string name, const char* overload) {
    return *overload == 0 ? name : name + "." + overload;
  };
  (library.impl(full_name(Operators::name, Operators::overload_name).c_str(),
                TORCH_FN(Lean<Operators>::run)),
   ...);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  namespace ops = at::_ops;
  register_lean<ops::add_Tensor, ops::add_Scalar, ops::sub_Tensor, ops::sub_Scalar,
                ops::rsub_Scalar, ops::mul_Tensor, ops::mul_Scalar, ops::div_Tensor,
                ops::div_Scalar, ops::pow_Tensor_Scalar, ops::neg, ops::exp, ops::sqrt, ops::rsqrt,
                ops::gelu, ops::relu, ops::silu, ops::sigmoid, ops::tanh>(library);
}

}  // namespace oslo
