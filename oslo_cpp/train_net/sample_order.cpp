#include "oslo_cpp/train_net/sample_order.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include "mpu/base/error.h"

namespace oslo {

SampleOrder::SampleOrder(int64_t samples, int64_t batch, int64_t seed)
    : samples_(samples), batch_(batch), seed_(seed) {
  OSLO_CHECK(batch >= 1 && samples >= batch, "batches of ", batch, " of ", samples,
             " samples; give at least as many samples as a batch has");
}

std::vector<int64_t> SampleOrder::of(int64_t iteration) {
  const int64_t epoch = iteration / batches_an_epoch();
  if (epoch != epoch_) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(
        static_cast<uint64_t>(seed_) * 1000003 + static_cast<uint64_t>(epoch));
    const at::Tensor drawn = at::randperm(samples_, generator, at::kLong);
    const auto* numbers = drawn.const_data_ptr<int64_t>();
    order_.assign(numbers, numbers + samples_);
    epoch_ = epoch;
  }
  const auto first = order_.begin() + (iteration % batches_an_epoch()) * batch_;
  return {first, first + batch_};
}

}  // namespace oslo
