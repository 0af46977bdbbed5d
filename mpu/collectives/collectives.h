#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "mpu/base/node_ptr.h"
#include "mpu/group/group.h"

namespace oslo {

/// Differentiable collectives: the four conjugate pairs of Megatron-LM (section 3, arXiv
/// 1909.08053) and the two fused ones of its sequence parallelism (arXiv 2205.05198), which are
/// each other's conjugates. Each is one autograd node. At size 1 each returns its argument.
/// Backward communicates under the name of the rule that called forward.

/// Identity / all-reduce: a whole value enters a region where every rank computes a part.
/// Consumers of one value that follow each other share one node, so that backward reduces once.
at::Tensor copy_to(const at::Tensor& tensor, const std::shared_ptr<Group>& group);

/// All-reduce (sum) / identity: partial sums leave such a region. A tensor that was moved in and
/// that nobody else holds is reduced in place.
at::Tensor reduce_from(at::Tensor tensor, const std::shared_ptr<Group>& group);

/// This rank's part of `dim` (`sizes`, one a rank) / all-gather.
at::Tensor scatter_to(const at::Tensor& tensor, const std::shared_ptr<Group>& group, int64_t dim,
                      c10::IntArrayRef sizes);

/// All-gather along `dim` / this rank's part: for a result that all ranks use alike.
at::Tensor gather_from(const at::Tensor& tensor, const std::shared_ptr<Group>& group, int64_t dim,
                       c10::IntArrayRef sizes);

/// All-gather / reduce-scatter: `copy_to(gather_from(tensor))` in one node each way, for a result
/// of which every rank uses something else. Consumers of one value that follow each other share
/// one node, so that backward scatters once, and one result while a graph holds it.
at::Tensor gather_and_copy(const at::Tensor& tensor, const std::shared_ptr<Group>& group,
                           int64_t dim, c10::IntArrayRef sizes);
/// The node of `gather_and_copy` that `tensor` is the result of, one for each value; else null.
NodePtr gathered_by(const at::Tensor& tensor);

/// Reduce-scatter (sum) / all-gather: `scatter_to(reduce_from(tensor))` in one node each way, for
/// partial sums of which every rank goes on with its part of `dim`. Moves half of an all-reduce.
at::Tensor reduce_and_scatter(const at::Tensor& tensor, const std::shared_ptr<Group>& group,
                              int64_t dim, c10::IntArrayRef sizes);

/// All-to-all / all-to-all with `split` and `join` exchanged (Group::all_to_all).
at::Tensor all_to_all(const at::Tensor& tensor, const std::shared_ptr<Group>& group,
                      const PartsAlong& split, const PartsAlong& join);

/// Has the backward of `copy_to` or `gather_and_copy`, whose result this is, start its collective
/// and wait for it in a node of its own: what has the sequence number that this gives, such as the
/// product for a weight's gradient, is computed in between. No number where nothing moves, and
/// where overlap does not pay (overlap.h). Counts are the same.
std::optional<uint64_t> start_in_backward(const at::Tensor& copied);

/// The same ones, started: what is computed between this and `wait` overlaps with them. Backward
/// overlaps, too: it starts the conjugate where forward waited, and waits for it where forward
/// started. The gradient mode is that of the start.
Pending start_reduce_from(at::Tensor tensor, const std::shared_ptr<Group>& group);
Pending start_gather_from(const at::Tensor& tensor, const std::shared_ptr<Group>& group,
                          int64_t dim, c10::IntArrayRef sizes);
Pending start_gather_and_copy(const at::Tensor& tensor, const std::shared_ptr<Group>& group,
                              int64_t dim, c10::IntArrayRef sizes);
Pending start_reduce_and_scatter(const at::Tensor& tensor, const std::shared_ptr<Group>& group,
                                 int64_t dim, c10::IntArrayRef sizes);

}  // namespace oslo
