#include "parallelizers/data/zero/state_shares.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

using Numbers = std::vector<size_t>;

int64_t whole_bytes(const at::Tensor& parameter) {
  int64_t bytes = parameter.element_size();
  for (const int64_t size : whole_sizes(parameter)) bytes *= size;
  return bytes;
}

/// Parts are contiguous. What is no part may lie in any order.
int64_t outermost(const at::Tensor& parameter) {
  const std::vector<int64_t> sizes = whole_sizes(parameter);
  const bool part = layout(parameter) != nullptr;
  int64_t found = -1;
  for (int64_t dim = 0; dim < parameter.dim(); ++dim) {
    if (sizes[dim] <= 1) continue;
    if (found < 0 || (!part && parameter.stride(dim) > parameter.stride(found))) found = dim;
  }
  return found < 0 && parameter.dim() > 0 ? 0 : found;
}

/// How many rows a cut keeps together: whole vectors of 64 elements, the most that a kernel takes.
int64_t unit_of(const at::Tensor& parameter, int64_t dim) {
  constexpr int64_t kVector = 64;
  if (parameter.element_size() >= 4 || dim < 0) return 1;
  if (layout(parameter)) return kVector;  // rows of other tensor ranks may be longer
  const int64_t rows = parameter.size(dim);
  return kVector / std::gcd(kVector, rows == 0 ? 1 : parameter.numel() / rows);
}

}  // namespace

std::vector<int64_t> SharedRows::of_ranks(int64_t rows, int ranks) const {
  std::vector<int64_t> each(ranks, 0);
  if (to_first) {
    each[first] = rows;
    return each;
  }
  const int64_t units = rows / unit;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool more = (rank - first + ranks) % ranks < units % ranks;
    each[rank] = (units / ranks + (more ? 1 : 0)) * unit;
  }
  // What is no whole unit stays behind the last one.
  int last = ranks - 1;
  while (last > 0 && each[last] == 0) --last;
  each[units == 0 ? first : last] += rows % unit;
  return each;
}

RowSharing::Stage& RowSharing::stage_of(const at::Tensor& parameter) {
  const LayoutPtr lies = layout(parameter);
  Stage& stage = stages_[lies ? lies->stages().to_string() : StageSet().to_string()];
  stage.bytes.resize(ranks_, 0);
  return stage;
}

SharedRows RowSharing::rows_of(const at::Tensor& parameter) {
  SharedRows rows;
  rows.dim = outermost(parameter);
  rows.unit = unit_of(parameter, rows.dim);
  int& next = stage_of(parameter).next;
  rows.first = next;
  const int64_t all = rows.dim < 0 ? 1 : whole_sizes(parameter)[rows.dim];
  const int64_t units = all == 0 ? 0 : std::max<int64_t>(all / rows.unit, 1);
  next = static_cast<int>((next + units) % ranks_);
  return rows;
}

std::vector<SharedRows> RowSharing::share(const std::vector<at::Tensor>& parameters) {
  std::vector<SharedRows> shares;
  if (unit_ == ShareUnit::rows) {
    for (const at::Tensor& each : parameters) shares.push_back(rows_of(each));
    return shares;
  }
  // The longest first, each to the rank that has least (Graham 1969).
  Numbers order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<int64_t> sizes;
  for (const at::Tensor& parameter : parameters) sizes.push_back(whole_bytes(parameter));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  shares.resize(parameters.size());
  for (const size_t i : order) {
    std::vector<int64_t>& bytes = stage_of(parameters[i]).bytes;
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += sizes[i];
    shares[i].dim = parameters[i].dim() > 0 ? 0 : -1;
    shares[i].first = static_cast<int>(least - bytes.begin());
    shares[i].to_first = true;
  }
  return shares;
}

std::vector<int64_t> elements_of_ranks(const at::Tensor& parameter, const SharedRows& rows,
                                       int ranks) {
  if (rows.dim < 0) return SharedRows{-1, 1, rows.first, true}.of_ranks(parameter.numel(), ranks);
  const int64_t here = parameter.size(rows.dim);
  std::vector<int64_t> elements = rows.of_ranks(here, ranks);
  for (int64_t& each : elements) each *= here == 0 ? 0 : parameter.numel() / here;
  return elements;
}

LayoutPtr shared_layout(const at::Tensor& parameter, const SharedRows& rows,
                        const ContextPtr& context) {
  auto layout = std::make_shared<Layout>(context);
  const LayoutPtr own = oslo::layout(parameter);
  const int last = layout->axes() - 1, ranks = layout->group(last)->size();
  const auto cut_of = [&](int64_t size) {
    const std::vector<int64_t> pieces = rows.of_ranks(size, ranks);
    return std::make_shared<const Cut>(Cut::Runs{{1, Cut::Sizes(pieces.begin(), pieces.end())}});
  };
  CutPtr cut = cut_of(parameter.size(rows.dim));
  if (own) {
    layout->set_stages(own->stages());
    for (int axis = 0; axis < own->axes(); ++axis) (*layout)[axis] = (*own)[axis];
    const Axes outside = own->axes_cutting(rows.dim);
    if (!outside.empty()) {
      const Cut& outer = *(*own)[outside.back()].cut;
      Cut::Family family;
      const auto add = [&](const Cut& one) {
        for (const int64_t size : one.sizes()) family.push_back(cut_of(size));
      };
      if (outer.family().empty()) add(outer);
      for (const CutPtr& other : outer.family()) add(*other);
      cut = cut->among(std::move(family));
    }
  }
  (*layout)[last] = {rows.dim, std::move(cut)};
  return layout;
}

std::vector<SharedBucket> shared_buckets(const std::vector<at::Tensor>& parameters,
                                         const std::vector<std::vector<int64_t>>& elements,
                                         int64_t bytes) {
  std::map<std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex>, Numbers> by_kind;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const c10::Device device = parameters[i].device();
    by_kind[{parameters[i].scalar_type(), device.type(), device.index()}].push_back(i);
  }
  std::vector<SharedBucket> buckets;
  for (const auto& [_, numbers] : by_kind) {
    int64_t left = 0;  // of the last bucket
    for (const size_t i : numbers) {
      if (parameters[i].numel() == 0) continue;
      const std::vector<int64_t>& each = elements[i];
      if (left <= 0) {
        SharedBucket& fresh = buckets.emplace_back();
        fresh.of_rank.resize(each.size());
        fresh.sizes.assign(each.size(), 0);
        left = bytes;
      }
      int64_t start = 0;
      for (size_t rank = 0; rank < each.size(); ++rank) {
        if (each[rank] == 0) continue;
        buckets.back().of_rank[rank].push_back({i, start, each[rank]});
        buckets.back().sizes[rank] += each[rank];
        start += each[rank];
      }
      left -= static_cast<int64_t>(parameters[i].nbytes());
    }
  }
  return buckets;
}

}  // namespace oslo
