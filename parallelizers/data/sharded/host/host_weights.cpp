#include "parallelizers/data/sharded/host/host_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "parallelizers/data/sharded/host/pages.h"
#include "parallelizers/libtorch/aligned.h"

namespace oslo {

int64_t outermost_dimension(const at::Tensor& own, c10::IntArrayRef whole) {
  int64_t outermost = 0;
  for (int64_t dim = 1; dim < own.dim(); ++dim) {
    if (whole[dim] < 2) continue;
    if (whole[outermost] < 2 || own.stride(dim) > own.stride(outermost)) outermost = dim;
  }
  return outermost;
}

namespace {

size_t bytes_of(const HostWeight& weight) {
  if (!weight.is_cut()) return 0;
  return aligned(static_cast<size_t>(weight.elements()) * c10::elementSize(weight.type));
}

/// Gradients of half types may come to add up in fp32.
size_t bytes_of_deposit(const HostWeight& weight) {
  return aligned(static_cast<size_t>(weight.elements()) *
                 std::max<size_t>(c10::elementSize(weight.type), 4));
}

}  // namespace

/// Behind what deposits say of themselves come the weights, those first that are here.
HostWeights::Places HostWeights::places_of(const std::vector<HostWeight>& weights, int ranks) {
  Places places;
  places.weights.resize(weights.size());
  places.end_of_weights = Deposits::words_for(ranks, weights.size());
  for (const bool here : {true, false}) {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i].here != here) continue;
      places.weights[i] = places.end_of_weights;
      places.end_of_weights += bytes_of(weights[i]);
    }
    places.end_of_weights = whole_pages(places.end_of_weights);
    if (here) places.committed = places.end_of_weights;
  }
  for (const HostWeight& weight : weights) {
    places.deposits.push_back(places.bytes_of_deposits);
    places.bytes_of_deposits += bytes_of_deposit(weight);
  }
  places.bytes_of_deposits = whole_pages(places.bytes_of_deposits);
  return places;
}

HostWeights::HostWeights(const std::shared_ptr<Group>& group, std::vector<HostWeight> weights)
    : HostWeights(group, weights, places_of(weights, group->size())) {}

HostWeights::HostWeights(const std::shared_ptr<Group>& group, std::vector<HostWeight> weights,
                         const Places& places)
    : weights_(std::move(weights)),
      offsets_(places.weights),
      ranks_(std::make_shared<HostRanks>(
          group,
          places.end_of_weights + static_cast<size_t>(group->size()) * places.bytes_of_deposits,
          places.committed)),
      turns_(ranks_),
      deposits_(
          ranks_,
          [&] {
            std::vector<Deposits::Place> all;
            for (size_t i = 0; i < weights_.size(); ++i) {
              all.push_back({weights_[i], places.deposits[i], bytes_of_deposit(weights_[i])});
            }
            return all;
          }(),
          places.end_of_weights, places.bytes_of_deposits) {}

void HostWeights::make_room(size_t weight) const {
  ranks_->commit(offsets_[weight], bytes_of(weights_[weight]));
}

at::Tensor HostWeights::whole(size_t number) const {
  const HostWeight& weight = weights_[number];
  return at::from_blob(
      ranks_->data() + offsets_[number], weight.sizes, weight.strides, [ranks = ranks_](void*) {},
      at::TensorOptions(weight.type));
}

at::Tensor HostWeights::part(size_t number) const {
  const HostWeight& weight = weights_[number];
  const size_t before =
      static_cast<size_t>(weight.elements_before()) * c10::elementSize(weight.type);
  return at::from_blob(
      ranks_->data() + offsets_[number] + before, weight.sizes_of_part(), weight.strides,
      [ranks = ranks_](void*) {}, at::TensorOptions(weight.type));
}

bool HostWeights::holds(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return false;
  const auto* const at = static_cast<const std::byte*>(tensor.storage().data());
  // What has no elements may lie at the end.
  return at >= ranks_->data() && at <= ranks_->data() + ranks_->bytes();
}

}  // namespace oslo
