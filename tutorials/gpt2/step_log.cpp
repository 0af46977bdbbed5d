#include "step_log.h"

#include <cstdio>
#include <filesystem>
#include <iomanip>

namespace gpt2 {

StepLog::StepLog(const TutorialOptions& options, const oslo::World& world)
    : steps_(options.train_step), speaks_(world.rank() == 0) {
  if (speaks_) std::filesystem::create_directories(options.out);
  if (speaks_ && !options.losses.empty()) losses_.open(options.losses);
  world.barrier();
}

void StepLog::add(std::int64_t step, const torch::Tensor& loss) {
  if (!speaks_) return;
  const double number = oslo::full_tensor(loss.detach()).item<double>();
  std::printf("step %ld/%ld  loss %.4f\n", static_cast<long>(step), static_cast<long>(steps_),
              number);
  std::fflush(stdout);
  if (losses_.is_open()) losses_ << std::setprecision(9) << number << std::endl;
}

}  // namespace gpt2
