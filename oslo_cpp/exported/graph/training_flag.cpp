#include "oslo_cpp/exported/graph/training_flag.h"

#include <ATen/core/enum_tag.h>

namespace oslo::exported {
namespace {

struct Norm {
  std::string_view operator_name, argument;
};

// Without running statistics a norm takes the batch's, in evaluation, too.
constexpr Norm kNorms[] = {
    {"aten::batch_norm", "training"},
    {"aten::instance_norm", "use_input_stats"},
};

}  // namespace

bool may_draw(const c10::OperatorHandle& operation) {
  return operation.hasTag(at::Tag::nondeterministic_seeded);
}

std::optional<TrainingFlag> training_flag(const c10::OperatorHandle& operation) {
  const c10::FunctionSchema& schema = operation.schema();
  for (const Norm& norm : kNorms) {
    if (norm.operator_name == schema.name()) return {{norm.argument, false, "running_mean"}};
  }
  if (!may_draw(operation)) return std::nullopt;
  for (const std::string_view name : {"train", "training"}) {
    if (schema.argumentIndexWithName(name)) return {{name}};
  }
  if (schema.argumentIndexWithName("dropout_p")) return {{"dropout_p", true}};
  return std::nullopt;
}

}  // namespace oslo::exported
