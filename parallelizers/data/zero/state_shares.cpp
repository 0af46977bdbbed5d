#include "parallelizers/data/zero/state_shares.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

using Numbers = std::vector<size_t>;

std::vector<Numbers> buckets_of(const std::vector<at::Tensor>& parameters, int64_t bytes) {
  struct Open {
    Numbers numbers;
    int64_t bytes = 0;
  };
  std::vector<Numbers> full;
  std::map<std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex>, Open> open;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const c10::Device device = parameter.device();
    Open& bucket = open[{parameter.scalar_type(), device.type(), device.index()}];
    bucket.numbers.push_back(i);
    bucket.bytes += static_cast<int64_t>(parameter.nbytes());
    if (bucket.bytes < bytes) continue;
    full.push_back(std::move(bucket.numbers));
    bucket = {};
  }
  for (auto& [_, bucket] : open) {
    if (!bucket.numbers.empty()) full.push_back(std::move(bucket.numbers));
  }
  return full;
}

/// Of all tensor ranks' parts together.
int64_t whole_bytes(const at::Tensor& parameter) {
  int64_t bytes = parameter.element_size();
  for (const int64_t size : value_of(parameter).sizes()) bytes *= size;
  return bytes;
}

/// The longest first, each to the rank that has least (Graham 1969). Parameters count as a whole:
/// tensor ranks, whose parts may be unequal, come to the same owners, and can step them together.
std::vector<int> owners_of(const std::vector<at::Tensor>& parameters, int ranks) {
  Numbers order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<int64_t> sizes;
  for (const at::Tensor& parameter : parameters) sizes.push_back(whole_bytes(parameter));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int> owners(parameters.size());
  std::vector<int64_t> bytes(ranks, 0);
  for (const size_t i : order) {
    owners[i] = static_cast<int>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
    bytes[owners[i]] += sizes[i];
  }
  return owners;
}

void add_piece(SharedBucket& bucket, int rank, const SharedPiece& piece) {
  if (piece.length == 0) return;
  bucket.of_rank[rank].push_back(piece);
  bucket.sizes[rank] += piece.length;
}

/// Cuts the bucket's elements, one parameter behind the other, into equal stretches.
void cut_evenly(SharedBucket& bucket, const Numbers& numbers,
                const std::vector<at::Tensor>& parameters, int ranks) {
  int64_t total = 0;
  for (const size_t i : numbers) total += parameters[i].numel();
  int rank = 0;
  int64_t room = total / ranks + (total % ranks > 0 ? 1 : 0);
  for (const size_t i : numbers) {
    for (int64_t start = 0; start < parameters[i].numel();) {
      while (room == 0) {
        ++rank;
        room = total / ranks + (rank < total % ranks ? 1 : 0);
      }
      const int64_t length = std::min(room, parameters[i].numel() - start);
      add_piece(bucket, rank, {i, start, length});
      start += length;
      room -= length;
    }
  }
}

}  // namespace

std::vector<SharedBucket> share_out(const std::vector<at::Tensor>& parameters, int ranks,
                                    ShareUnit unit, int64_t bytes) {
  std::vector<SharedBucket> buckets;
  const std::vector<int> owners =
      unit == ShareUnit::tensors ? owners_of(parameters, ranks) : std::vector<int>();
  for (const Numbers& numbers : buckets_of(parameters, bytes)) {
    SharedBucket& bucket = buckets.emplace_back();
    bucket.of_rank.resize(ranks);
    bucket.sizes.assign(ranks, 0);
    if (unit == ShareUnit::elements) {
      cut_evenly(bucket, numbers, parameters, ranks);
    } else {
      for (const size_t i : numbers) add_piece(bucket, owners[i], {i, 0, parameters[i].numel()});
    }
  }
  return buckets;
}

}  // namespace oslo
