#include "checkpoint/resume/resumed_state.h"

#include <utility>

#include "checkpoint/resume/scheduler_steps.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

int64_t steps_of_scheduler(const CheckpointFolder& folder) {
  const std::optional<int64_t>& steps = folder.index().scheduler_steps;
  OSLO_CHECK(steps, "the checkpoint ", printable_path(folder.path()),
             " has no scheduler; save it with SaveOptions().scheduler(&scheduler), or load it "
             "without");
  OSLO_CHECK(*steps <= int64_t{UINT32_MAX}, "the checkpoint ", printable_path(folder.path()),
             " says that its scheduler has made ", *steps, " steps, more than it can count");
  return *steps;
}

}  // namespace

ResumedState::ResumedState(const ModelView& model, const ModelState& state, const MPU& mpu,
                           const CheckpointFolder& folder, const LoadOptions& options)
    : options_(options) {
  if (options.optimizer() != nullptr) {
    optimizer_.emplace(*options.optimizer(), model, state, folder);
  }
  if (options.random_states()) random_.emplace(state, mpu, folder);
  if (options.scheduler() != nullptr) scheduler_steps_ = steps_of_scheduler(folder);
  if (options.extra() != nullptr) extra_ = folder.read_extra();
}

void ResumedState::commit() {
  if (optimizer_) optimizer_->commit();
  if (random_) random_->commit();
  if (options_.scheduler() != nullptr) {
    SchedulerSteps::of(*options_.scheduler()) = static_cast<unsigned>(scheduler_steps_);
  }
  if (options_.extra() != nullptr) *options_.extra() = std::move(extra_);
}

void check_pretrained(const std::filesystem::path& folder, const LoadOptions& options) {
  OSLO_CHECK(options.extra() == nullptr && options.optimizer() == nullptr &&
                 options.scheduler() == nullptr && !options.random_states(),
             printable_path(folder), " is a folder of Hugging Face's, which has no ", kExtraName,
             ", optimizer, scheduler or random states: load it without");
}

}  // namespace oslo
