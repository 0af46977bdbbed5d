#include "parallelizers/memory/recompute/record/recorded_kinds.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "parallelizers/placement/carrier/arguments.h"

namespace oslo::recompute {

bool updates_statistics(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  static constexpr std::array<std::string_view, 8> kNames = {"aten::batch_norm",
                                                             "aten::native_batch_norm",
                                                             "aten::cudnn_batch_norm",
                                                             "aten::miopen_batch_norm",
                                                             "aten::instance_norm",
                                                             "aten::_batch_norm_impl_index",
                                                             "aten::_native_batch_norm_legit",
                                                             "aten::_batch_norm_with_update"};
  if (std::find(kNames.begin(), kNames.end(), op.name) == kNames.end()) return false;
  if (!arguments[3].isTensor() || !arguments[3].toTensor().defined()) return false;
  return !arguments[5].isBool() || arguments[5].toBool();
}

bool drops_nothing(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.schema->arguments()[i].name() == "dropout_p") {
      return arguments[i].isDouble() && arguments[i].toDouble() == 0;
    }
  }
  return false;
}

bool makes_memory(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.random || op.in_place || op.writes_out) return false;
  if (op.name.starts_with("aten::new_") || op.name.find("_like") != std::string::npos) return true;
  bool meets_tensor = false;
  for_each_tensor(arguments, [&](const at::Tensor&) { meets_tensor = true; });
  return !meets_tensor;
}

}  // namespace oslo::recompute
