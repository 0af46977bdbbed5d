#pragma once

#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// The whole of a placed or marked tensor as an ordinary one, the same on every rank of its mesh.
/// Differentiable (all-gather forward, this rank's part backward); collective; the tensor itself
/// when it is an ordinary one. What pipeline stages hold is given to the ranks of all stages,
/// without history: collective over them, too.
at::Tensor full_tensor(const at::Tensor& tensor);

/// This rank's part as an ordinary tensor; differentiable, no communication. The tensor itself when
/// it is an ordinary one. Throws where another pipeline stage holds it. Writing to it writes the
/// placed tensor: do so on every rank, as views that had to be gathered are gathered again after
/// it.
at::Tensor local_tensor(const at::Tensor& tensor);

/// Whether the tensor stands for something cut over ranks (a placed activation, a marked
/// parameter).
bool is_placed(const at::Tensor& tensor);

/// Whether it is a value of a model whose forward is followed (`Layout::followed`).
bool is_followed(const at::Tensor& tensor);

/// Whether this rank has the tensor, or its part of it: false where another pipeline stage does.
bool is_here(const at::Tensor& tensor);

/// How it is cut, and which pipeline stages hold it; null for an ordinary tensor.
LayoutPtr layout(const at::Tensor& tensor);

/// The sizes of what a tensor stands for: of one that is marked, those of the whole.
std::vector<int64_t> whole_sizes(const at::Tensor& tensor);

/// What any tensor stands for: placed, marked or plain. A gathered view whose base was written is
/// taken again, which is collective.
Value value_of(const at::Tensor& tensor);

/// A placed tensor from a whole one that every rank holds: keeps this rank's part (differentiable).
/// One placement an axis of the mesh.
at::Tensor distribute(const at::Tensor& whole, const MeshPtr& mesh,
                      const std::vector<Placement>& placements);
at::Tensor distribute(const at::Tensor& whole, const ContextPtr& context,
                      const std::vector<Placement>& placements);

/// A placed tensor from this rank's part. Throws when the part does not have the size that the
/// placements give `global_sizes` on this rank.
at::Tensor from_local(const at::Tensor& part, const MeshPtr& mesh,
                      const std::vector<Placement>& placements, c10::IntArrayRef global_sizes);
at::Tensor from_local(const at::Tensor& part, const ContextPtr& context,
                      const std::vector<Placement>& placements, c10::IntArrayRef global_sizes);

/// Whether it carries a tangent of forward-mode differentiation. Collectives have none: beside
/// values that are cut it would be lost.
bool has_tangent(const at::Tensor& tensor);
[[noreturn]] void refuse_tangents(const char* operation);

}  // namespace oslo
