#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "mpu/base/error.h"
#include "mpu/base/parts.h"
#include "mpu/group/group.h"

// The all-to-all. Every transport takes one piece of memory with the ranks' pieces behind each
// other and gives one; what this costs is a copy where they do not lie so.
namespace oslo {
namespace {

using parts::as_real;
using Shape = std::vector<int64_t>;

PartsAlong from_the_front(PartsAlong parts, const at::Tensor& of) {
  if (parts.dim < 0) parts.dim += of.dim();
  return parts;
}

/// Of the piece that comes from each rank.
std::vector<Shape> shapes_of(const at::Tensor& part, const PartsAlong& split,
                             const PartsAlong& join, int rank) {
  std::vector<Shape> shapes(join.sizes.size(), part.sizes().vec());
  for (size_t r = 0; r < shapes.size(); ++r) {
    shapes[r][split.dim] = split.sizes[rank];
    shapes[r][join.dim] = join.sizes[r];
  }
  return shapes;
}

std::vector<int64_t> lengths_of(const std::vector<Shape>& shapes) {
  std::vector<int64_t> lengths;
  for (const Shape& shape : shapes) lengths.push_back(c10::multiply_integers(shape));
  return lengths;
}

}  // namespace

at::Tensor Group::all_to_all(const at::Tensor& part, const PartsAlong& split,
                             const PartsAlong& join) {
  return begin_all_to_all(part, split, join, /*awaited=*/true).wait();
}

Pending Group::start_all_to_all(const at::Tensor& part, const PartsAlong& split,
                                const PartsAlong& join) {
  return begin_all_to_all(part, split, join, /*awaited=*/false);
}

void Group::count_all_to_all(const at::Tensor& part, const PartsAlong& split,
                             const PartsAlong& join, int64_t moved) {
  const auto come =
      lengths_of(shapes_of(part, from_the_front(split, part), from_the_front(join, part), rank_));
  count("all_to_all", parts::sum(come) - come[rank_], moved, part);
}

Pending Group::begin_all_to_all(const at::Tensor& part, const PartsAlong& given_split,
                                const PartsAlong& given_join, bool awaited) {
  if (size() == 1) return Pending(part);
  const PartsAlong split = from_the_front(given_split, part);
  const PartsAlong join = from_the_front(given_join, part);
  const auto of_each_rank = static_cast<size_t>(size());
  const int64_t kept = split.dim == join.dim ? split.sizes[rank_] : part.size(join.dim);
  OSLO_CHECK(split.sizes.size() == of_each_rank && join.sizes.size() == of_each_rank &&
                 part.size(split.dim) == parts::sum(split.sizes) && join.sizes[rank_] == kept,
             "all_to_all over ", name_, ": of shape ", part.sizes(), ", pieces of ", split.sizes,
             " along dimension ", split.dim, " cannot be sent, and pieces of ", join.sizes,
             " along dimension ", join.dim, " received by rank ", rank_);

  const std::vector<Shape> shapes = shapes_of(part, split, join, rank_);
  std::vector<int64_t> come = lengths_of(shapes), go;
  const int64_t all = parts::sum(come);
  const auto bytes = static_cast<int64_t>(part.element_size());
  count_all_to_all(part, split, join, silent(part) ? 0 : (all - come[rank_]) * bytes);
  const at::Tensor received = at::empty({all}, part.options());
  const auto finish = [shapes, come, dim = join.dim](const at::Tensor& pieces) {
    std::vector<at::Tensor> views = pieces.split_with_sizes(come);
    for (size_t r = 0; r < shapes.size(); ++r) views[r] = views[r].view(shapes[r]);
    return at::cat(views, dim);
  };
  if (silent(part)) return Pending(finish(received.zero_()));

  std::vector<at::Tensor> pieces = parts::plain(part).split_with_sizes(split.sizes, split.dim);
  for (at::Tensor& piece : pieces) {
    piece = piece.reshape(-1);
    go.push_back(piece.numel());
  }
  // c10d counts the real numbers of complex ones.
  const int64_t reals = part.is_complex() ? 2 : 1;
  std::vector<int64_t> reals_come = come;
  for (int64_t& length : reals_come) length *= reals;
  for (int64_t& length : go) length *= reals;
  at::Tensor sent = as_real(at::cat(pieces)).view(-1), output = as_real(received).view(-1);
  c10d::AllToAllOptions options;
  options.asyncOp = !awaited;
  return pending(backend(sent).alltoall_base(output, sent, reals_come, go, options), received,
                 "all_to_all")
      .then(finish);
}

}  // namespace oslo
