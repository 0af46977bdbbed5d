#include "oslo_cpp/step/step_models.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "parallelizers/data/replicas.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

std::string ranks_of(const MPU& mpu) {
  std::string text;
  for (const char* axis : {"data", "tensor", "pipeline"}) {
    text += c10::str(text.empty() ? "" : ", ", axis, " ranks ", mpu.group(axis)->ranks());
  }
  return text;
}

bool over_same_ranks(const MPU& a, const MPU& b) {
  return a.data_group()->ranks() == b.data_group()->ranks() &&
         a.pipeline_group()->ranks() == b.pipeline_group()->ranks() &&
         oslo::over_same_ranks(context_of(a.tensor_mesh()), context_of(b.tensor_mesh()));
}

/// Behind those of other models.
void append(const ModelView& model, std::vector<ModuleView>& modules,
            std::vector<ParameterView>& parameters, std::vector<BufferView>& buffers) {
  const size_t before = modules.size();
  modules.insert(modules.end(), model.modules().begin(), model.modules().end());
  for (ParameterView parameter : model.parameters()) {
    parameter.module += before;
    parameters.push_back(std::move(parameter));
  }
  buffers.insert(buffers.end(), model.buffers().begin(), model.buffers().end());
}

}  // namespace

StepModels::StepModels(std::vector<ParallelModel> models) : models_(std::move(models)) {
  OSLO_CHECK(!models_.empty(), "PipelineSchedule was given no model");
  for (size_t i = 1; i < models_.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      OSLO_CHECK(models_[i].module() != models_[k].module(), "PipelineSchedule: its models ", k,
                 " and ", i, " are the same one; give each model once");
    }
    OSLO_CHECK(over_same_ranks(models_[i].mpu(), mpu()), "PipelineSchedule: its model ", i,
               " is over ", ranks_of(models_[i].mpu()), ", its model 0 over ", ranks_of(mpu()),
               "; initialize all models of one step with the same sizes and the same "
               "pipeline_schedule");
  }
}

std::vector<ContextPtr> StepModels::other_contexts() const {
  std::vector<ContextPtr> others;
  for (size_t i = 1; i < models_.size(); ++i) {
    others.push_back(context_of(models_[i].mpu().tensor_mesh()));
  }
  return others;
}

std::vector<std::shared_ptr<Group>> StepModels::groups() const {
  std::vector<std::shared_ptr<Group>> groups;
  for (const ParallelModel& model : models_) {
    const auto& own = model.mpu().groups();
    groups.insert(groups.end(), own.begin(), own.end());
  }
  return groups;
}

ModelView StepModels::view() const {
  if (models_.size() == 1) return ModelView(first().module());
  std::vector<ModuleView> modules;
  std::vector<ParameterView> parameters;
  std::vector<BufferView> buffers;
  for (const ParallelModel& model : models_) {
    append(ModelView(model.module()), modules, parameters, buffers);
  }
  return {std::move(modules), std::move(parameters), std::move(buffers)};
}

std::vector<at::Tensor> StepModels::parameters() const {
  std::vector<at::Tensor> parameters;
  for (NamedTensor& each : view().in_use()) {
    if (!each.computed) parameters.push_back(std::move(each.tensor));
  }
  return parameters;
}

std::vector<at::Tensor> StepModels::tensors() const {
  const ModelView all = view();
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : all.in_use()) tensors.push_back(each.tensor);
  for (const BufferView& buffer : all.buffers()) tensors.push_back(buffer.tensor);
  return tensors;
}

StageMap StepModels::stages() const {
  StageMap stages;
  for (const at::Tensor& each : tensors()) {
    const LayoutPtr layout = oslo::layout(each);
    if (layout && layout->resident()) stages.add(each, layout->stages());
  }
  return stages;
}

void StepModels::agree_on(const std::function<void()>& step) const {
  if (!context()->pipeline() || context()->device().is_meta()) return step();
  agree_on_success(mpu().world(), "the pipeline schedule", [&] {
    step();
    for (const at::Tensor& parameter : parameters()) {
      OSLO_CHECK(!is_here(parameter) || parameter.device() == context()->device(),
                 "PipelineSchedule: a parameter is on ", parameter.device(), " and the model on ",
                 context()->device(), "; move the whole model: model->to(device)");
    }
  });
}

void StepModels::take_from_first_replica(bool buffers_only) const {
  Group& data = *mpu().data_group();
  if (data.size() == 1) return;
  const RuleScope scope("pipeline schedule");
  std::vector<at::Tensor> tensors = buffers_only ? std::vector<at::Tensor>() : parameters();
  const ModelView all = view();
  for (const BufferView& buffer : all.buffers()) tensors.push_back(buffer.tensor);
  std::erase_if(tensors,
                [](const at::Tensor& tensor) { return !is_here(tensor) || is_sharded(tensor); });
  if (!tensors.empty()) broadcast_from_first(data, tensors);
}

}  // namespace oslo
