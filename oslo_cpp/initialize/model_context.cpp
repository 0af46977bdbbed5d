#include "oslo_cpp/initialize/model_context.h"

#include <c10/util/StringUtil.h>

#include "mpu/transport/counted_process_group.h"
#include "oslo_cpp/config/precision_of.h"
#include "oslo_cpp/initialize/initialize_stages.h"
#include "parallelizers/placement/carrier/weight_casts.h"
#include "parallelizers/placement/engine/kernel_fusion.h"

namespace oslo {

c10::Device device_of(const ModelView& model) {
  const auto& parameters = model.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().registered.device();
}

std::shared_ptr<ModelContext> make_context(const MPU& mpu, c10::Device device,
                                           const ConfigValues& values) {
  auto context = context_of(mpu.tensor_mesh());
  put_on_stages(*context, mpu.pipeline_group(), device, pipeline_shape(values));
  if (values.kernel_fusion) context->fusion = std::make_shared<KernelFusion>();
  context->precision = precision_of(values);
  context->sequence_attention = values.context_attention;
  if (context->follows()) {
    context->weight_casts = std::make_shared<WeightCasts>(context->precision.master_weights);
  }
  return context;
}

void refuse_undivided_batches(const MPU& mpu, const ConfigValues& values) {
  if (values.num_accumulation_steps == 1) return;
  auto* group = dynamic_cast<CountedProcessGroup*>(mpu.group("data")->process_group().get());
  if (group == nullptr) return;
  const char* key = values.names_micro_batches               ? "NUM_MICRO_BATCHES"
                    : values.dialect == ConfigDialect::libai ? "train.num_accumulation_steps"
                                                             : "num_accumulation_steps";
  group->refuse_undivided(c10::str(
      "DistributedDataParallel: '", key, "' = ", values.num_accumulation_steps,
      " in the config, by which an oslo::PipelineSchedule divides a batch, and this forward would "
      "take it whole; train with oslo::PipelineSchedule and the model itself, or divide batches by "
      "hand, the first ones under ddp.no_sync(), or set it to 1"));
}

}  // namespace oslo
