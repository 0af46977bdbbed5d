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

HostWeights::Places HostWeights::places_of(const std::vector<HostWeight>& weights) {
  Places places;
  for (const HostWeight& weight : weights) {
    const auto elements = static_cast<size_t>(weight.elements());
    const size_t element = c10::elementSize(weight.type);
    places.weights.push_back(places.bytes_of_weights);
    places.deposits.push_back(places.bytes_of_deposits);
    if (weight.is_cut()) places.bytes_of_weights += aligned(elements * element);
    // Gradients of half types may come to add up in fp32.
    places.bytes_of_deposits += aligned(elements * std::max<size_t>(element, 4));
  }
  places.bytes_of_weights = whole_pages(places.bytes_of_weights);
  places.bytes_of_deposits = whole_pages(places.bytes_of_deposits);
  return places;
}

HostWeights::HostWeights(const std::shared_ptr<Group>& group, std::vector<HostWeight> weights)
    : HostWeights(group, weights, places_of(weights)) {}

HostWeights::HostWeights(const std::shared_ptr<Group>& group, std::vector<HostWeight> weights,
                         const Places& places)
    : weights_(std::move(weights)),
      offsets_(places.weights),
      ranks_(std::make_shared<HostRanks>(
          group,
          places.bytes_of_weights + Deposits::words_for(group->size(), weights_.size()) +
              static_cast<size_t>(group->size()) * places.bytes_of_deposits,
          places.bytes_of_weights + Deposits::words_for(group->size(), weights_.size()))),
      turns_(ranks_),
      deposits_(
          ranks_,
          [&] {
            std::vector<Deposits::Place> all;
            for (size_t i = 0; i < weights_.size(); ++i) {
              const size_t end =
                  i + 1 < weights_.size() ? places.deposits[i + 1] : places.bytes_of_deposits;
              all.push_back({weights_[i], places.deposits[i], end - places.deposits[i]});
            }
            return all;
          }(),
          places.bytes_of_weights, places.bytes_of_deposits) {}

at::Tensor HostWeights::whole(size_t number) const {
  const HostWeight& weight = weights_[number];
  return at::from_blob(
      ranks_->data() + offsets_[number], weight.sizes, weight.strides, [ranks = ranks_](void*) {},
      at::TensorOptions(weight.type));
}

at::Tensor HostWeights::part(size_t number) const {
  const HostWeight& weight = weights_[number];
  const auto before = static_cast<size_t>(weight.begin * weight.strides[weight.dim]) *
                      c10::elementSize(weight.type);
  return at::from_blob(
      ranks_->data() + offsets_[number] + before, weight.sizes_of_part(), weight.strides,
      [ranks = ranks_](void*) {}, at::TensorOptions(weight.type));
}

bool HostWeights::holds(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return false;
  const auto* const at = static_cast<const std::byte*>(tensor.storage().data());
  return at >= ranks_->data() && at < ranks_->data() + ranks_->bytes();
}

}  // namespace oslo
