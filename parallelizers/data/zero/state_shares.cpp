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

/// How many elements a cut keeps together. LibTorch's kernels for half types round what is left
/// behind their last whole vector in another way, so that a cut in the middle of one would show.
int64_t run_of(const at::Tensor& parameter) {
  constexpr int64_t kVectors = 64;  // no kernel takes more at a time
  return parameter.element_size() < 4 ? kVectors : 1;
}

/// Cuts the bucket's elements, one parameter behind the other, into equal stretches.
void cut_evenly(SharedBucket& bucket, const Numbers& numbers,
                const std::vector<at::Tensor>& parameters, int ranks) {
  int64_t total = 0;
  for (const size_t i : numbers) total += parameters[i].numel();
  const auto end_of = [&](int rank) {
    return (rank + 1) * (total / ranks) + std::min<int64_t>(rank + 1, total % ranks);
  };
  int rank = 0;
  int64_t before = 0;  // elements of the parameters before
  for (const size_t i : numbers) {
    const int64_t elements = parameters[i].numel(), run = run_of(parameters[i]);
    for (int64_t start = 0; start < elements;) {
      while (end_of(rank) <= before + start) ++rank;
      const int64_t whole_runs = (end_of(rank) - before + run - 1) / run * run;
      const int64_t end = std::min(whole_runs, elements);
      add_piece(bucket, rank, {i, start, end - start});
      start = end;
    }
    before += elements;
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
