#include <ATen/core/Tensor.h>

#include "mpu/base/error.h"
#include "oslo_cpp/exported/file/codes.h"
#include "oslo_cpp/exported/graph/steps.h"

namespace oslo::exported {
namespace {

class TypeCheckStep final : public Step {
 public:
  TypeCheckStep(std::string name, int tensor, c10::ScalarType type)
      : Step(std::move(name)), tensor_(tensor), type_(type) {}

  void run(Values& values) const override {
    const c10::ScalarType seen = values[tensor_].toTensor().scalar_type();
    OSLO_CHECK(seen == type_, name(), ": the program was exported for ", type_,
               " here, and the model computes with ", seen, "; export it in that type");
  }
  std::vector<int> slots() const override { return {tensor_}; }

 private:
  int tensor_;
  c10::ScalarType type_;
};

/// A check that asks for nothing.
class NoStep final : public Step {
 public:
  using Step::Step;
  void run(Values& /*values*/) const override {}
  std::vector<int> slots() const override { return {}; }
};

}  // namespace

std::unique_ptr<Step> make_type_check_step(const Node& node, Names& names) {
  OSLO_CHECK(node.outputs.empty(), node.where, ": it has no results");
  const Document* tensor = node.argument("a");
  OSLO_CHECK(tensor != nullptr && tensor->choice().first == "as_tensor", node.where,
             ": it takes a tensor, a");
  const int slot = bind_any(*tensor, names).slots().front();
  // Sizes, strides and device are those of the run that was traced.
  const Document* type = node.argument("dtype");
  if (type == nullptr || type->choice().first == "as_none") {
    return std::make_unique<NoStep>(node.where);
  }
  const auto [kind, code] = type->choice();
  OSLO_CHECK(kind == "as_scalar_type", type->where(), ": it is a type of elements");
  return std::make_unique<TypeCheckStep>(node.where, slot, scalar_type_of(code));
}

}  // namespace oslo::exported
