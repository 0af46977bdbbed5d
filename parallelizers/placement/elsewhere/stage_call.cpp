#include "parallelizers/placement/elsewhere/stage_call.h"

#include <ATen/Context.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

/// By its name without overload and underscore. Of operators that are not listed, those of a later
/// LibTorch too, elements may decide.
bool draws_by_shape(std::string_view name) {
  static constexpr std::string_view kListed[] = {"alpha_dropout",
                                                 "bernoulli",
                                                 "cauchy",
                                                 "dropout",
                                                 "exponential",
                                                 "feature_alpha_dropout",
                                                 "feature_dropout",
                                                 "geometric",
                                                 "gru",
                                                 "log_normal",
                                                 "lstm",
                                                 "native_dropout",
                                                 "normal",
                                                 "normal_functional",
                                                 "rand_like",
                                                 "randint_like",
                                                 "randn_like",
                                                 "random",
                                                 "rnn_relu",
                                                 "rnn_tanh",
                                                 "uniform"};
  // Its range is an element.
  if (name.starts_with("aten::randint_like.Tensor")) return false;
  if (!name.starts_with("aten::")) return false;
  name = name.substr(6, name.find('.', 6) - 6);
  if (name.ends_with('_')) name.remove_suffix(1);
  return std::ranges::find(kListed, name) != std::end(kListed);
}

}  // namespace

Draws draws(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  // Attention leaves it to the dropout that it is made of.
  if (!op.random || op.name == "aten::scaled_dot_product_attention") return Draws::none;
  const bool drops = op.name.find("dropout") != std::string::npos;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = op.schema->arguments()[i].name();
    const c10::IValue& argument = arguments[i];
    if ((name == "train" || name == "training") && argument.isBool() && !argument.toBool()) {
      return Draws::none;
    }
    const bool rate = name == "dropout" || (drops && name == "p");
    if (rate && argument.isDouble() && argument.toDouble() == 0) return Draws::none;
  }
  // What is drawn in place without a rule has no place to be drawn into elsewhere.
  const bool placed = !op.in_place || op.rule != nullptr;
  return placed && draws_by_shape(op.name) ? Draws::as_shapes_say : Draws::as_elements_say;
}

at::Generator generator_of(c10::ArrayRef<c10::IValue> arguments, at::Device device) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator()) return argument.toGenerator();
  }
  return at::globalContext().defaultGenerator(device);
}

bool all_known(c10::ArrayRef<c10::IValue> arguments) {
  bool known = true;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    const PlacedTensorImpl* impl = placed_impl(tensor);
    known &=
        impl != nullptr ? impl->unfinished().local.is_cpu() : tensor.is_cpu() && is_here(tensor);
  });
  return known;
}

StageSet stages_of(c10::ArrayRef<c10::IValue> arguments) {
  int highest = -1;
  StageSet common;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    const LayoutPtr layout = oslo::layout(tensor);
    if (!layout || !layout->resident()) return;
    common = highest < 0 ? layout->stages() : common & layout->stages();
    highest = std::max(highest, layout->stages().first());
  });
  return highest < 0 || !common.empty() ? common : StageSet::of(highest);
}

void refuse_scale_of_stage(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor target = arguments[0].isTensor() ? arguments[0].toTensor() : at::Tensor();
  if (!target.defined() || !is_gradient(target)) return;
  for_each_tensor(arguments.slice(1), [&](const at::Tensor& other) {
    const PlacedTensorImpl* impl = placed_impl(other);
    if (impl == nullptr || impl->dim() > 0 || !impl->layout()->resident()) return;
    fail(op.name, " changes a gradient of ", mark_of(target)->name, " by a number that pipeline ",
         impl->layout()->stages().to_string(),
         " computed, of its own gradients perhaps (torch::nn::utils::clip_grad_norm_ does so); use "
         "parallel.clip_grad_norm_, which knows those of all stages, or, where a stage's own is "
         "meant, oslo::local_tensor of it");
  });
}

std::pair<at::Tensor, const Mark*> parameter_of(const at::Tensor& tensor) {
  at::Tensor parameter = tensor;
  if (const PlacedTensorImpl* impl = placed_impl(tensor)) {
    const GraphPlace* const place = GraphPlace::find(*impl);
    if (place == nullptr || !place->views_leaf()) return {};
    parameter = place->leaf();
  }
  const Mark* mark = mark_of(parameter);
  if (mark == nullptr || !mark->accumulator) return {};
  return {std::move(parameter), mark};
}

}  // namespace oslo
