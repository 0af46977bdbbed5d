#include "oslo_cpp/config/engine_keys.h"

#include <algorithm>
#include <array>

#include "mpu/base/error.h"

namespace oslo {
namespace {

constexpr const char* kAverages = "DataParallelGradientHandler";
/// Colossal-AI's for mode "sequence": gradients are summed over that where they are computed, so
/// that averaging over data ranks is what is left of it.
constexpr const char* kAveragesSequences = "SequenceParallelGradientHandler";
constexpr const char* kSumsCopies = "PipelineSharedModuleGradientHandler";

/// Of what there is not.
struct MissingHandler {
  const char* name;
  const char* needs;
};
constexpr std::array<MissingHandler, 2> kMissing = {
    {{"ZeROGradientHandler", "ZeRO's optimizer"},
     {"MoeGradientHandler", "experts on ranks of their own"}}};

constexpr const char* kWriteAnEngine =
    " is done by Colossal-AI's engine, and initialize(model, config) makes none: write auto "
    "[engine, loader] = oslo::initialize(model, optimizer, criterion, train_loader, config), or ";

}  // namespace

std::vector<std::string> gradient_handler_names() {
  std::vector<std::string> names = {kAverages, kAveragesSequences, kSumsCopies};
  for (const MissingHandler& missing : kMissing) names.emplace_back(missing.name);
  return names;
}

void check_handlers(const EngineKeys& keys) {
  for (const std::string& handler : keys.gradient_handlers) {
    for (const MissingHandler& missing : kMissing) {
      OSLO_CHECK_AS(config, handler != missing.name, "'gradient_handler' of type ", handler,
                    " is for ", missing.needs, ", which is not there yet: set the type to ",
                    kAverages);
    }
  }
}

void check_handlers_average(const EngineKeys& keys, const ParallelSizes& sizes) {
  const auto& handlers = keys.gradient_handlers;
  if (handlers.empty() || sizes.data == 1 || sizes.pipeline > 1) return;
  const bool averages = std::any_of(handlers.begin(), handlers.end(), [](const auto& handler) {
    return handler == kAverages || handler == kAveragesSequences;
  });
  OSLO_CHECK_AS(config, averages, "'gradient_handler' names ", handlers.front(),
                " and nothing that averages gradients over the ", sizes.data,
                " data ranks: add {\"type\": \"", kAverages,
                "\"}, or leave 'gradient_handler' out, and DistributedDataParallel does it");
}

void check_no_engine_keys(const EngineKeys& keys) {
  const int batches = keys.gradient_accumulation;
  OSLO_CHECK_AS(config, batches == 1, "'gradient_accumulation' = ", batches, kWriteAnEngine,
                "set it to 1, and run the first ", batches - 1, " of ", batches,
                " batches under ddp.no_sync(), each with loss / ", batches,
                ", or all of them as one by an oslo::PipelineSchedule with "
                "\"num_accumulation_steps\": ",
                batches);
  OSLO_CHECK_AS(config, keys.clip_grad_norm == 0, "'clip_grad_norm' = ", keys.clip_grad_norm,
                kWriteAnEngine, "set it to 0, and write parallel.clip_grad_norm_(",
                keys.clip_grad_norm, "); in front of optimizer.step()");
  OSLO_CHECK_AS(config, keys.gradient_handlers.empty(), "'gradient_handler'", kWriteAnEngine,
                "leave it out, and train an oslo::DistributedDataParallel of the model, or with "
                "an oslo::PipelineSchedule");
  const bool scales =
      keys.init_scale || keys.growth_factor || keys.backoff_factor || keys.growth_interval;
  OSLO_CHECK_AS(config, !scales, "the scaling of 'fp16'", kWriteAnEngine,
                "leave init_scale, growth_factor, backoff_factor and growth_interval out, and "
                "write oslo::GradScaler scaler(parallel, oslo::GradScalerOptions().init_scale(",
                keys.init_scale.value_or(65536), "))");
}

}  // namespace oslo
