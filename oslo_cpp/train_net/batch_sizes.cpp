#include "oslo_cpp/train_net/batch_sizes.h"

#include <algorithm>
#include <cmath>

#include "mpu/base/error.h"

namespace oslo {

BatchSizes batch_sizes(const TrainValues& values, int data_ranks) {
  const auto& micro = values.train_micro_batch_size;
  const auto& global = values.global_batch_size;
  const auto& steps = values.num_accumulation_steps;
  OSLO_CHECK_AS(config, micro || global,
                "neither 'train.train_micro_batch_size' nor 'train.global_batch_size' is given: "
                "say how many rows a step has");
  BatchSizes sizes;
  if (!global) {
    sizes.accumulation = static_cast<int>(steps.value_or(1));
    sizes.micro = *micro;
    sizes.global = *micro * sizes.accumulation * data_ranks;
    return sizes;
  }
  sizes.global = *global;
  const int64_t known = data_ranks * (micro ? *micro : steps.value_or(1));
  OSLO_CHECK_AS(config, *global % known == 0, "'train.global_batch_size' ", *global,
                " is no multiple of ", data_ranks, data_ranks == 1 ? " data rank" : " data ranks",
                micro ? c10::str(" x 'train.train_micro_batch_size' ", *micro)
                      : c10::str(" x 'train.num_accumulation_steps' ", steps.value_or(1)),
                ": set it to ", std::max<int64_t>(1, *global / known) * known);
  const int64_t left = *global / known;
  if (!micro) {
    sizes.accumulation = static_cast<int>(steps.value_or(1));
    sizes.micro = left;
    return sizes;
  }
  OSLO_CHECK_AS(config, steps.value_or(left) == left, "'train.global_batch_size' ", *global,
                " is not 'train.train_micro_batch_size' ", *micro,
                " x 'train.num_accumulation_steps' ", *steps, " x ", data_ranks,
                data_ranks == 1 ? " data rank" : " data ranks", " = ", *micro * *steps * data_ranks,
                ": leave one of the three out, which then follows");
  sizes.micro = *micro;
  sizes.accumulation = static_cast<int>(left);
  return sizes;
}

int64_t iterations_of(const TrainValues& values, int64_t samples, const BatchSizes& sizes) {
  OSLO_CHECK_AS(config, samples >= sizes.global, "a step has ", sizes.global,
                " rows ('train.global_batch_size'), and 'dataloader.train' has ", samples,
                " samples: make steps smaller, or give more data");
  return std::max(values.train_iter, values.train_epoch * (samples / sizes.global));
}

int64_t warmup_iterations(const TrainValues& values, int64_t iterations) {
  if (values.scheduler && values.scheduler->warmup_iter) return *values.scheduler->warmup_iter;
  return static_cast<int64_t>(std::ceil(values.warmup_ratio * static_cast<double>(iterations)));
}

}  // namespace oslo
