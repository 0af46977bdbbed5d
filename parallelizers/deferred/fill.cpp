#include "parallelizers/deferred/fill.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <set>

#include "mpu/base/error.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/deferred/model_tensors.h"
#include "parallelizers/deferred/strips.h"

namespace oslo {
namespace {

c10::Storage computed(const Recipe& recipe) {
  const BelowDeferred below;
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  Strips strips;
  if (!strips.possible(recipe)) return strips.replay().content(recipe).storage();
  const auto element = static_cast<int64_t>(c10::elementSize(recipe->at.type));
  const int64_t elements = recipe->bytes / element;
  const int64_t most = Strips::kBytes / element;
  const at::Tensor all = at::empty({elements}, at::TensorOptions(recipe->at.type));
  for (int64_t begin = 0; begin < elements; begin += most) {
    strips.compute(recipe, begin, all.narrow(0, begin, std::min(most, elements - begin)));
  }
  return all.storage();
}

void check_operands(const Recipe& recipe, std::set<const RecordedStep*>& seen) {
  for (const RecordedStep* step : steps_of(recipe)) {
    if (!seen.insert(step).second) continue;
    step->call->check_operands();
    for (const RecordedOperand& operand : step->call->operands) {
      if (operand.recipe) check_operands(operand.recipe, seen);
    }
  }
}

}  // namespace

void fill(const at::Tensor& tensor) {
  Content* content = content_of(tensor);
  if (content == nullptr) return;
  if (!content->filled) {
    content->filled = computed(content->recipe);
    content->recipe = nullptr;
  }
  const c10::Storage filled = content->filled;  // the content may go with the tensor's storage
  adopt(tensor, filled);
}

void fill(const ModelView& model) {
  for_each_tensor_of(model, [](const at::Tensor& tensor, const std::string&) {
    if (Content* content = content_of(tensor)) {
      content->model->filled = true;
      fill(tensor);
    }
  });
}

bool is_deferred(const ModelView& model) {
  bool found = false;
  for_each_tensor_of(model, [&](const at::Tensor& tensor, const std::string&) {
    found = found || is_deferred(tensor);
  });
  return found;
}

void check_filled(const at::Tensor& tensor, const std::string& name, const char* doing) {
  OSLO_CHECK(!is_deferred(tensor), doing, ": ", name,
             " was made under oslo::DeferredInit and has no content yet; call oslo::initialize or "
             "oslo::materialize first");
}

void check_fillable(const ModelView& model) {
  std::set<const RecordedStep*> seen;
  for_each_tensor_of(model, [&](const at::Tensor& tensor, const std::string&) {
    if (is_deferred(tensor)) check_operands(content_of(tensor)->recipe, seen);
  });
}

}  // namespace oslo
