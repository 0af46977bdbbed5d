#include "parallelizers/data/sharded/shard_pieces.h"

#include <ATen/ATen.h>

namespace oslo {

ShardPieces::ShardPieces(const at::Tensor& own, const Layout& layout)
    : dim(layout[layout.context()->replica_axis].dim),
      cut(layout[layout.context()->replica_axis].cut),
      replicas(layout.group(layout.context()->replica_axis)->size()),
      sizes(own.sizes()),
      strides(own.is_non_overlapping_and_dense() ? own.strides()
                                                 : at::empty_like(own, at::kMeta).strides()) {}

int64_t ShardPieces::elements_on(int replica) const {
  return c10::multiply_integers(sizes_on(replica));
}

c10::DimVector ShardPieces::sizes_on(int replica) const {
  c10::DimVector own = sizes;
  if (cut) own[dim] = cut->local_size(replica);
  return own;
}

int64_t ShardPieces::begin_on(int replica) const {
  int64_t begin = 0;
  for (int before = 0; before < replica; ++before) begin += cut->local_size(before);
  return begin;
}

std::vector<std::pair<int, at::Tensor>> ShardPieces::of(const at::Tensor& whole) const {
  std::vector<std::pair<int, at::Tensor>> pieces;
  int64_t begin = 0;
  for (int replica = 0; replica < replicas; ++replica) {
    const int64_t size = cut ? cut->local_size(replica) : 0;
    if (elements_on(replica) > 0) {
      pieces.emplace_back(replica, cut ? whole.narrow(dim, begin, size) : whole);
    }
    begin += size;
  }
  return pieces;
}

JoinedShards::JoinedShards(const std::vector<const ShardPieces*>& weights, int replicas,
                           int64_t beside)
    : weights_(weights), beside_(beside), begins_{0} {
  for (int replica = 0; replica < replicas; ++replica) {
    int64_t elements = beside;
    for (const ShardPieces* weight : weights_) elements += weight->elements_on(replica);
    sizes_.push_back(elements);
    begins_.push_back(begins_.back() + elements);
  }
  at_.assign(begins_.begin(), begins_.end() - 1);
}

template <typename Copy>
void JoinedShards::next(const at::Tensor& joined, const Copy& copy) {
  const ShardPieces& weight = *weights_[weight_++];
  for (size_t replica = 0; replica < sizes_.size(); ++replica) {
    const int64_t elements = weight.elements_on(static_cast<int>(replica));
    if (elements > 0) copy(replica, joined.narrow(0, at_[replica], elements));
    at_[replica] += elements;
  }
}

void JoinedShards::read(const at::Tensor& joined, const at::Tensor& whole) {
  const auto pieces = weights_[weight_]->of(whole);
  auto piece = pieces.begin();
  next(joined, [&](size_t /*replica*/, const at::Tensor& there) {
    piece->second.copy_(there.view(piece->second.sizes()));
    ++piece;
  });
}

void JoinedShards::write(const at::Tensor& joined, const at::Tensor& whole) {
  const auto pieces = weights_[weight_]->of(whole);
  auto piece = pieces.begin();
  next(joined, [&](size_t /*replica*/, const at::Tensor& there) {
    there.view(piece->second.sizes()).copy_(piece->second);
    ++piece;
  });
}

void JoinedShards::write_zeros(const at::Tensor& joined) {
  next(joined, [](size_t /*replica*/, const at::Tensor& there) { there.zero_(); });
}

at::Tensor JoinedShards::beside(const at::Tensor& joined, int replica) const {
  return joined.narrow(0, begins_[replica + 1] - beside_, beside_);
}

}  // namespace oslo
