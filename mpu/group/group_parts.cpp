#include <ATen/ATen.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "mpu/base/error.h"
#include "mpu/base/parts.h"
#include "mpu/group/group.h"
#include "mpu/transport/mover.h"

// The collectives of parts: all-gather and reduce-scatter. Shared memory takes parts of any sizes
// where they lie. The other transports take one piece of memory with the ranks' parts behind each
// other; what this costs is a copy where they do not lie so.
namespace oslo {
namespace {

using parts::as_real;
using parts::plain;
using parts::resized;

int64_t bytes_of(const at::Tensor& like, int64_t elements) {
  return elements * static_cast<int64_t>(like.element_size());
}

bool even(c10::IntArrayRef sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == sizes[0]; });
}

int64_t largest(c10::IntArrayRef sizes) {
  return *std::max_element(sizes.begin(), sizes.end());
}

/// `count` tensors like `part`, behind each other.
at::Tensor row_of(const at::Tensor& part, int64_t count) {
  auto shape = part.sizes().vec();
  shape.insert(shape.begin(), count);
  return at::empty(shape, part.options());
}

/// In memory of its own: a view could not be written in place behind a node of autograd's graph.
at::Tensor copied_part(const at::Tensor& whole, int64_t dim, int64_t start, int64_t own) {
  return whole.narrow(dim, start, own).clone(at::MemoryFormat::Contiguous);
}

/// The same memory with the first two dimensions as one: how c10d takes a row.
at::Tensor joined(const at::Tensor& row) {
  return as_real(row).flatten(0, 1);
}

}  // namespace

at::Tensor Group::all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes) {
  return begin_all_gather(part, dim, sizes, /*awaited=*/true).wait();
}

Pending Group::start_all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes) {
  return begin_all_gather(part, dim, sizes, /*awaited=*/false).reading(part);
}

Pending Group::begin_all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes,
                                bool awaited) {
  if (size() == 1) return Pending(part);
  if (dim < 0) dim += part.dim();
  OSLO_CHECK(static_cast<int>(sizes.size()) == size() && part.size(dim) == sizes[rank_],
             "all_gather over ", name_, ": this rank's part has ", part.size(dim),
             " along dimension ", dim, ", the layout says ", sizes);
  const int64_t row = parts::row_size(part, dim);
  const bool uneven = mover(part) == Mover::shared_memory;
  const int64_t others = uneven ? parts::sum(sizes) - sizes[rank_] : (size() - 1) * largest(sizes);
  count_all_gather(part, dim, sizes, silent(part) ? 0 : bytes_of(part, others * row));
  if (silent(part)) return Pending(resized(part, dim, parts::sum(sizes)).zero_());
  if (!uneven) return gather_padded(part, dim, sizes, awaited);
  at::Tensor whole = resized(part, dim, parts::sum(sizes));
  if (whole.numel() == 0) return Pending(std::move(whole));
  std::vector<at::Tensor> inputs{as_real(plain(part))};
  std::vector<std::vector<at::Tensor>> outputs{parts::as_real_parts(whole, dim, sizes)};
  c10d::AllgatherOptions options;
  options.asyncOp = !awaited;
  return pending(backend(whole).allgather(outputs, inputs, options), whole, "all_gather");
}

/// Every part as large as the largest, then what is real of them joined.
Pending Group::gather_padded(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes,
                             bool awaited) {
  at::Tensor padded = plain(part);
  if (part.size(dim) != largest(sizes)) {
    padded = resized(part, dim, largest(sizes));
    padded.narrow(dim, 0, part.size(dim)).copy_(part);
  }
  const at::Tensor row = row_of(padded, size());
  const auto finish = [dim, sizes = sizes.vec()](const at::Tensor& gathered) {
    if (dim == 0 && even(sizes)) return gathered.flatten(0, 1);
    std::vector<at::Tensor> parts;
    for (size_t r = 0; r < sizes.size(); ++r) {
      parts.push_back(gathered.select(0, static_cast<int64_t>(r)).narrow(dim, 0, sizes[r]));
    }
    return at::cat(parts, dim);
  };
  if (row.numel() == 0) return Pending(finish(row));
  c10d::AllgatherOptions options;
  options.asyncOp = !awaited;
  at::Tensor input = as_real(padded), output = joined(row);
  if (mover(part) != Mover::two_levels) {
    return pending(backend(row)._allgather_base(output, input, options), row, "all_gather")
        .then(finish);
  }
  std::vector<at::Tensor> inputs{input};
  std::vector<std::vector<at::Tensor>> outputs{as_real(row).unbind(0)};
  return pending(backend(row).allgather(outputs, inputs, options), row, "all_gather").then(finish);
}

at::Tensor Group::reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes) {
  return begin_reduce_scatter(tensor, dim, sizes, /*awaited=*/true).wait();
}

Pending Group::start_reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes) {
  return begin_reduce_scatter(tensor, dim, sizes, /*awaited=*/false).reading(tensor);
}

Pending Group::begin_reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes,
                                    bool awaited) {
  if (size() == 1) return Pending(tensor);
  if (dim < 0) dim += tensor.dim();
  OSLO_CHECK(static_cast<int>(sizes.size()) == size() && tensor.size(dim) == parts::sum(sizes),
             "reduce_scatter over ", name_, ": dimension ", dim, " has ", tensor.size(dim),
             ", the ranks' parts ", sizes, " do not add up to it");
  const int64_t start = parts::sum(sizes.slice(0, rank_)), own = sizes[rank_];
  const Mover by = silent(tensor) ? Mover::nothing : mover(tensor);
  const bool padded = by == Mover::nccl || by == Mover::staged;
  const int64_t rows = by == Mover::nothing ? 0 : padded ? largest(sizes) : own;
  const int64_t moved = bytes_of(tensor, (size() - 1) * rows * parts::row_size(tensor, dim));
  count_reduce_scatter(tensor, dim, sizes,
                       by == Mover::two_levels ? all_reduce_brings(tensor) : moved);
  if (by == Mover::nothing) return Pending(copied_part(tensor, dim, start, own));
  at::Tensor buffer = plain(tensor);
  if (buffer.numel() == 0) return Pending(resized(tensor, dim, own));
  if (by == Mover::gloo) return scatter_by_exchange(buffer, dim, sizes, awaited);
  if (padded) return scatter_padded(buffer, dim, sizes, awaited);
  if (by == Mover::two_levels) {
    if (buffer.is_same(tensor)) buffer = buffer.clone();
    std::vector<at::Tensor> tensors{as_real(buffer)};
    c10d::AllreduceOptions options;
    options.asyncOp = !awaited;
    return pending(backend(buffer).allreduce(tensors, options), buffer, "reduce_scatter")
        .then([dim, start, own](const at::Tensor& whole) {
          return copied_part(whole, dim, start, own);
        });
  }
  at::Tensor part = resized(tensor, dim, own);
  std::vector<at::Tensor> outputs{as_real(part)};
  std::vector<std::vector<at::Tensor>> inputs{parts::as_real_parts(buffer, dim, sizes)};
  c10d::ReduceScatterOptions options;
  options.asyncOp = !awaited;
  return pending(backend(part).reduce_scatter(outputs, inputs, options), part, "reduce_scatter");
}

/// Gloo's own reduce-scatter is an all-reduce inside, which brings twice as much. Here each rank
/// sends the others their parts, of any sizes, and adds up what it gets, in the ranks' order.
Pending Group::scatter_by_exchange(const at::Tensor& buffer, int64_t dim, c10::IntArrayRef sizes,
                                   bool awaited) {
  const int64_t row = as_real(buffer).numel() / buffer.numel() * parts::row_size(buffer, dim);
  std::vector<int64_t> to, from(size(), row * sizes[rank_]);
  for (const int64_t each : sizes) to.push_back(row * each);
  at::Tensor sent = as_real(buffer).reshape(-1);
  if (dim != 0) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& piece : parts::as_real_parts(buffer, dim, sizes)) {
      pieces.push_back(piece.reshape(-1));
    }
    sent = at::cat(pieces);
  }
  const at::Tensor received = row_of(resized(buffer, dim, sizes[rank_]), size());
  at::Tensor output = as_real(received).reshape(-1);
  c10d::AllToAllOptions options;
  options.asyncOp = !awaited;
  return pending(backend(buffer).alltoall_base(output, sent, from, to, options), received,
                 "reduce_scatter")
      .then([](const at::Tensor& parts) {
        return parts.sum(at::IntArrayRef{0}, false, parts.scalar_type());
      });
}

/// Every part as large as the largest: how NCCL has it.
Pending Group::scatter_padded(const at::Tensor& buffer, int64_t dim, c10::IntArrayRef sizes,
                              bool awaited) {
  const int64_t own = sizes[rank_];
  const at::Tensor part = resized(buffer, dim, largest(sizes));
  at::Tensor input = as_real(buffer), output = as_real(part);
  if (dim != 0 || !even(sizes)) {
    const at::Tensor row = row_of(part, size()).zero_();
    int64_t start = 0;
    for (int r = 0; r < size(); ++r) {
      row.select(0, r).narrow(dim, 0, sizes[r]).copy_(buffer.narrow(dim, start, sizes[r]));
      start += sizes[r];
    }
    input = joined(row);
  }
  c10d::ReduceScatterOptions options;
  options.asyncOp = !awaited;
  return pending(backend(buffer)._reduce_scatter_base(output, input, options), part,
                 "reduce_scatter")
      .then(
          [dim, own](const at::Tensor& padded) { return padded.narrow(dim, 0, own).contiguous(); });
}

}  // namespace oslo
