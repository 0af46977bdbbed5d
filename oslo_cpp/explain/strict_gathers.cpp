#include "oslo_cpp/explain/strict_gathers.h"

#include <torch/csrc/autograd/function.h>

#include "mpu/base/error.h"
#include "parallelizers/placement/layout/layout.h"

namespace oslo {
namespace {

std::string layer_with(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

std::string behind(const std::string& module) {
  return module.empty() ? "" : ", at or behind module " + module + ",";
}

/// "dim 2 over tensor: 6+6, as h.0.c_fc.weight is".
std::string lies_text(const Layout& layout, std::string& cut_layer) {
  std::string text;
  for (int axis = 0; axis < layout.axes(); ++axis) {
    const auto& [dim, cut] = layout[axis];
    if (dim < 0) continue;
    text +=
        c10::str(text.empty() ? "" : "; ", "dim ", dim, " over ", layout.group(axis)->name(), ": ");
    for (int r = 0; r < cut->ranks(); ++r) text += c10::str(r == 0 ? "" : "+", cut->local_size(r));
    if (!cut->origin()) continue;
    text += ", as " + cut->origin()->parameter + " is";
    if (cut_layer.empty()) cut_layer = layer_with(cut->origin()->parameter);
  }
  return text;
}

/// What may be done about a value that is cut as that layer is.
std::string fix_text(const std::string& cut_layer) {
  const std::string layer = cut_layer.empty() ? "Use "
                                              : c10::str("Leave the value whole by \"plan\": {\"",
                                                         cut_layer, "\": \"replicate\"}, use ");
  return c10::str(layer,
                  "an operator that keeps the cut, give this one a rule "
                  "(oslo::register_rule, docs/adding-a-rule.md), or call "
                  "oslo::full_tensor(t) where the gather is meant; \"strict\": false allows "
                  "all gathers");
}

}  // namespace

void StrictGathers::about_to_use(const std::string& parameter) {
  const std::lock_guard<std::mutex> lock(mutex_);
  parameter_ = parameter;
}

void StrictGathers::about_to_gather(const UnplannedGather& gather) {
  std::string at;
  if (torch::autograd::get_current_node() != nullptr) {
    at = ", in a backward pass,";
  } else {
    const std::lock_guard<std::mutex> lock(mutex_);
    at = behind(layer_with(parameter_));
  }
  std::string cut_layer;
  const std::string placement = lies_text(gather.layout, cut_layer);
  fail("strict: ", gather.operation, at, " would gather a value of shape ", gather.sizes,
       ", which is cut (", placement, "): ", gather.reason, "; nothing was gathered. ",
       fix_text(cut_layer));
}

void refuse_gathers(const Explanation& example) {
  for (const ExplainedCall& call : example.calls) {
    if (call.gathers.empty()) continue;
    std::string cut, cut_layer;
    for (const ExplainedValue& operand : call.operands) {
      if (operand.cuts.empty()) continue;
      const std::string& from = operand.cuts.front().from;
      cut +=
          c10::str(cut.empty() ? "" : " beside ", operand.name.empty() ? "a value" : operand.name,
                   " of shape ", c10::IntArrayRef(operand.shape), ", which is cut (",
                   operand.placement(), from.empty() ? "" : ", as " + from + " is", ")");
      if (cut_layer.empty() && !from.empty()) cut_layer = layer_with(from);
    }
    fail("strict: ", call.operation, behind(call.module), " would gather ",
         cut.empty() ? "a value" : cut, ", as the example shows: ", call.gathers.front(),
         "; nothing was cut or gathered. ", fix_text(cut_layer));
  }
}

}  // namespace oslo
