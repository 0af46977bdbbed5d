#include "parallelizers/placement/layout/cuts/cut.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "mpu/base/error.h"

namespace oslo {

namespace {

/// Runs without elements left out, equal neighbours joined: equal cuts compare equal however they
/// came about (a split, a join, a reshape).
Cut::Runs normalized(const Cut::Runs& runs) {
  Cut::Runs result;
  for (const Cut::Run& run : runs) {
    const bool empty = run.repeat == 0 || std::all_of(run.pieces.begin(), run.pieces.end(),
                                                      [](int64_t piece) { return piece == 0; });
    if (empty) continue;
    if (!result.empty() && result.back().pieces == run.pieces) {
      result.back().repeat += run.repeat;
    } else {
      result.push_back(run);
    }
  }
  if (result.empty()) result.push_back({1, Cut::Sizes(runs.front().pieces.size(), 0)});
  return result;
}

}  // namespace

Cut::Cut(Runs runs, std::shared_ptr<CutOrigin> origin, int64_t origin_scale)
    : runs_(normalized(runs)), origin_(std::move(origin)), origin_scale_(origin_scale) {
  sizes_.assign(runs_.front().pieces.size(), 0);
  for (const Run& run : runs_) {
    for (size_t r = 0; r < sizes_.size(); ++r) sizes_[r] += run.repeat * run.pieces[r];
  }
  for (const int64_t size : sizes_) size_ += size;
  tells_strides_ = sizes_[0] > 1 && size_ == sizes_[0] * ranks();
}

std::shared_ptr<const Cut> Cut::among(Family family) const {
  auto cut = std::make_shared<Cut>(*this);
  cut->family_ = std::move(family);
  for (const auto& other : cut->family_) cut->tells_strides_ &= other->sizes_ == sizes_;
  return cut;
}

bool Cut::leaves_a_rank_empty() const {
  return gives_a_rank(0);
}

bool Cut::gives_a_rank(int64_t size) const {
  const auto has = [&](const Cut& cut) {
    return std::find(cut.sizes_.begin(), cut.sizes_.end(), size) != cut.sizes_.end();
  };
  return has(*this) || std::any_of(family_.begin(), family_.end(),
                                   [&](const auto& other) { return has(*other); });
}

bool Cut::same_family(const Cut& other) const {
  return std::equal(family_.begin(), family_.end(), other.family_.begin(), other.family_.end(),
                    [](const auto& left, const auto& right) { return *left == *right; });
}

template <typename Change>
Cut::Family Cut::changed_family(const Change& change) const {
  Family changed;
  for (const auto& other : family_) {
    changed.push_back(change(*other));
    if (!changed.back()) return {};
  }
  return changed;
}

Cut Cut::balanced(int64_t size, int ranks, int64_t blocks, int64_t unit) {
  OSLO_CHECK(blocks >= 1 && unit >= 1 && size % (blocks * unit) == 0, "a dimension of ", size,
             " cannot be cut as ", blocks, " block(s) in whole units of ", unit, ": ", size,
             " is not a multiple of ", blocks, " x ", unit);
  const int64_t units = size / blocks / unit;
  Sizes pieces;
  for (int r = 0; r < ranks; ++r) pieces.push_back((units / ranks + (r < units % ranks)) * unit);
  return Cut(Runs{{blocks, pieces}});
}

CutPtr Cut::scaled(int64_t factor) const {
  Runs runs = runs_;
  for (Run& run : runs) {
    for (int64_t& piece : run.pieces) piece *= factor;
  }
  const bool exact = origin_scale_ % factor == 0;
  auto cut = std::make_shared<Cut>(std::move(runs), exact ? origin_ : nullptr,
                                   exact ? origin_scale_ / factor : 1);
  cut->family_ = changed_family([&](const Cut& other) { return other.scaled(factor); });
  return cut;
}

CutPtr Cut::divided(int64_t divisor) const {
  Runs runs = runs_;
  for (Run& run : runs) {
    for (int64_t& piece : run.pieces) {
      if (piece % divisor != 0) return nullptr;
      piece /= divisor;
    }
  }
  Family family = changed_family([&](const Cut& other) { return other.divided(divisor); });
  if (family.size() != family_.size()) return nullptr;
  auto cut = std::make_shared<Cut>(std::move(runs), origin_, origin_scale_ * divisor);
  cut->family_ = std::move(family);
  return cut;
}

CutPtr Cut::repeated(int64_t count) const {
  Runs runs = runs_;
  if (runs.size() == 1) {
    runs.front().repeat *= count;
  } else {
    for (int64_t i = 1; i < count; ++i) runs.append(runs_.begin(), runs_.end());
  }
  auto cut = std::make_shared<Cut>(std::move(runs), origin_, origin_scale_);
  cut->family_ = changed_family([&](const Cut& other) { return other.repeated(count); });
  return cut;
}

at::Tensor Cut::by_rank(const at::Tensor& whole, int64_t dim) const {
  // Of nothing but empty vectors cat makes no graph.
  if (contiguous() || whole.size(dim) == 0) return whole;
  std::vector<std::vector<at::Tensor>> parts(ranks());
  int64_t start = 0;
  for (const Run& run : runs_) {
    for (int64_t i = 0; i < run.repeat; ++i) {
      for (int r = 0; r < ranks(); ++r) {
        parts[r].push_back(whole.narrow(dim, start, run.pieces[r]));
        start += run.pieces[r];
      }
    }
  }
  std::vector<at::Tensor> all;
  for (auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return at::cat(all, dim);
}

at::Tensor Cut::in_order(const at::Tensor& joined, int64_t dim) const {
  if (contiguous() || joined.size(dim) == 0) return joined;
  std::vector<int64_t> next(ranks(), 0);
  for (int r = 1; r < ranks(); ++r) next[r] = next[r - 1] + sizes_[r - 1];
  std::vector<at::Tensor> pieces;
  for (const Run& run : runs_) {
    for (int64_t i = 0; i < run.repeat; ++i) {
      for (int r = 0; r < ranks(); ++r) {
        pieces.push_back(joined.narrow(dim, next[r], run.pieces[r]));
        next[r] += run.pieces[r];
      }
    }
  }
  return at::cat(pieces, dim);
}

}  // namespace oslo
