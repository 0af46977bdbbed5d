#include "global_batch_sampler.h"

#include <torch/serialize/archive.h>

#include <stdexcept>
#include <string>

namespace gpt2 {

GlobalBatchSampler::GlobalBatchSampler(std::size_t size, std::size_t global_batch,
                                       std::size_t data_ranks, std::size_t data_rank)
    : global_batch_(global_batch), steps_(global_batch == 0 ? 0 : size / global_batch) {
  if (steps_ == 0 || global_batch % data_ranks != 0) {
    throw std::runtime_error("a batch of " + std::to_string(global_batch) + " from " +
                             std::to_string(size) + " samples on " + std::to_string(data_ranks) +
                             " data-parallel ranks: choose a multiple of the ranks, at most the "
                             "number of samples");
  }
  const std::size_t local = global_batch / data_ranks;
  for (std::size_t place = data_rank * local; place < (data_rank + 1) * local; ++place) {
    places_.emplace_back(size, global_batch, place, /*allow_duplicates=*/false);
  }
}

void GlobalBatchSampler::set_epoch(std::size_t epoch) {
  for (auto& place : places_) place.set_epoch(epoch);
}

std::optional<std::vector<std::size_t>> GlobalBatchSampler::next(std::size_t batch_size) {
  if (batch_size != local_batch()) {
    throw std::runtime_error("the data loader asks for batches of " + std::to_string(batch_size) +
                             ", the sampler makes batches of " + std::to_string(local_batch()));
  }
  std::vector<std::size_t> batch;
  for (auto& place : places_) {
    const auto sample = place.next(1);
    if (!sample) return std::nullopt;
    batch.push_back(sample->front());
  }
  return batch;
}

void GlobalBatchSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size) steps_ = *new_size / global_batch_;
  for (auto& place : places_) place.reset(new_size);
  for (std::size_t step = 0; step < start_; ++step) next(local_batch());
}

void GlobalBatchSampler::save(torch::serialize::OutputArchive& archive) const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    torch::serialize::OutputArchive place;
    places_[i].save(place);
    archive.write(std::to_string(i), place);
  }
}

void GlobalBatchSampler::load(torch::serialize::InputArchive& archive) {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    torch::serialize::InputArchive place;
    archive.read(std::to_string(i), place);
    places_[i].load(place);
  }
}

}  // namespace gpt2
