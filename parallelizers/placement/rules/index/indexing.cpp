#include "parallelizers/placement/rules/index/indexing.h"

#include <ATen/ATen.h>

#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

bool is_mask(const Value& index) {
  const at::ScalarType type = index.local.scalar_type();
  return type == at::kBool || type == at::kByte;
}

/// Capital letters, for the dimensions of the shape that indices share.
constexpr int64_t kMostCommon = 26;
char common_letter(int64_t i) {
  return static_cast<char>('A' + i);
}

}  // namespace

Indexing indexing_of(const Call& call) {
  Indexing indexing;
  const Value self = call.value(0);
  indexing.self = letters(self.dim());
  std::vector<Value> indices;
  int64_t at = 0, first = -1, last = -1, common_dims = 0;
  bool adjacent = true;
  for (const std::optional<at::Tensor>& tensor : call.argument(1).toOptionalTensorVector()) {
    if (!tensor || !tensor->defined()) {
      ++at;
      continue;
    }
    indices.push_back(value_of(*tensor));
    const bool mask = is_mask(indices.back());
    const int64_t taken = mask ? indices.back().dim() : 1;
    if (taken == 0 || at + taken > self.dim()) return indexing;
    indexing.masks |= mask;
    indexing.indices.push_back(mask ? indexing.self.substr(at, taken) : "");
    indexing.touched += indexing.self.substr(at, taken);
    adjacent &= first < 0 || at == last + 1;
    if (first < 0) first = at;
    at += taken;
    last = at - 1;
    common_dims = std::max<int64_t>(common_dims, mask ? 1 : indices.back().dim());
  }
  if (indices.empty() || common_dims > kMostCommon) return indexing;
  c10::SmallVector<int64_t, 4> longest(common_dims, 1);
  for (const Value& index : indices) {
    for (int64_t d = 0; !is_mask(index) && d < index.dim(); ++d) {
      if (index.size(d) != 1) longest[common_dims - index.dim() + d] = index.size(d);
    }
  }
  for (int64_t i = 0; i < common_dims; ++i) indexing.common += common_letter(i);
  for (size_t i = 0; i < indices.size(); ++i) {
    if (is_mask(indices[i])) continue;
    const int64_t missing = common_dims - indices[i].dim();
    for (int64_t d = 0; d < indices[i].dim(); ++d) {
      const bool stretches = indices[i].size(d) == 1 && longest[missing + d] != 1;
      indexing.indices[i] += stretches ? '-' : common_letter(missing + d);
    }
  }
  // Indices side by side leave their result in their place, others in front.
  if (!adjacent) indexing.result = indexing.common;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (adjacent && d == first) indexing.result += indexing.common;
    if (indexing.touched.find(indexing.self[d]) == std::string::npos) {
      indexing.result += indexing.self[d];
    }
  }
  indexing.understood = true;
  return indexing;
}

OwnPositions own_positions(const at::Tensor& indices, const Cut& cut, int rank) {
  const int64_t held = cut.local_size(rank);
  if (cut.contiguous()) return own_positions(indices, first_index(cut, rank), held);
  const at::TensorOptions like = indices.options().dtype(at::kLong);
  const at::Tensor order =
      cut.by_rank(at::arange(cut.size(), like), 0).narrow(0, first_index(cut, rank), held);
  const at::Tensor place =
      at::full({cut.size()}, -1, like).scatter(0, order, at::arange(held, like));
  const at::Tensor wanted = indices.to(at::kLong).clamp(0, cut.size() - 1).flatten();
  const at::Tensor local = place.gather(0, wanted).view(indices.sizes());
  const at::Tensor elsewhere = local.lt(0);
  return {local.masked_fill(elsewhere, 0), elsewhere};
}

OwnPositions own_positions(const at::Tensor& indices, int64_t first, int64_t held) {
  const at::Tensor local = indices - first;
  if (held == 0) return {at::zeros_like(local), at::ones_like(local, at::kBool)};
  const at::Tensor place = local.clamp(0, held - 1);
  return {place, local.ne(place)};
}

at::Tensor never_empty(const at::Tensor& part, int64_t dim) {
  if (part.size(dim) > 0) return part;
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[dim] = 1;
  return joined({part, part.new_zeros(sizes)}, dim);
}

}  // namespace oslo
