#pragma once

#include <c10/core/TensorImpl.h>

#include <memory>
#include <optional>
#include <string>

#include "mpu/base/node_ptr.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/libtorch/tensor_tag.h"
#include "parallelizers/placement/layout/parameter_layouts.h"
#include "parallelizers/placement/layout/value.h"
#include "parallelizers/placement/layout/weight_uses.h"

namespace torch::autograd {
struct Node;
}

namespace oslo {

class ShardedWeight;

/// What a marked tensor (a parameter, its gradient, an optimizer's state) carries: it is this
/// rank's part of something larger. A marked tensor is an ordinary tensor of the local shape, with
/// storage; operators treat it as the whole it is a part of.
struct Mark final : TagPart {
  Mark(std::string name, const LayoutPtr& layout, c10::IntArrayRef local_sizes)
      : name(std::move(name)),
        layout(layout),
        layouts(layout),
        local_sizes(local_sizes.begin(), local_sizes.end()) {}

  std::string name;
  /// How the tensor lies that carries the mark.
  LayoutPtr layout;
  /// How the parameter lies that it is, or belongs to, and what belongs to that.
  ParameterLayouts layouts;
  c10::SmallVector<int64_t, 4> local_sizes;
  /// The row of an embedding table that gets no gradient; -1: none. The layer cannot pass it, since
  /// LibTorch compares padding_idx with the rows of this rank's part.
  int64_t padding_row = -1;
  /// What the plan says of this weight's uses; null: nothing.
  std::shared_ptr<const WeightUses> uses;
  /// Of a new tensor that the program made like a parameter of pipeline stages, on every rank, and
  /// wrote no gradient into: what is drawn or read of it is no rank's own.
  bool made_like = false;
  /// Of a parameter whose parts lie with data replicas between its uses; null: it does not.
  std::shared_ptr<ShardedWeight> sharded;
  /// Where the gradients of the marked parameter itself arrive (accumulate_marked.h).
  mutable NodePtr accumulator;
};

/// The mark of a tensor; null when it has none. Throws when the tensor has lost part of it, or no
/// longer has the shape that its layout says: a shard taken for the whole would be silently wrong.
const Mark* mark_of(const at::Tensor& tensor);

/// Turns `parameter` (whole, the same on all ranks) into this rank's part, in place: the tensor
/// keeps its identity, so that typed members, tied weights and optimizers see the part.
void mark_parameter(const at::Tensor& parameter, const LayoutPtr& layout, const std::string& name);

/// Marks an ordinary tensor that is all this rank's already, or elsewhere: here it keeps its
/// memory, elsewhere it has none.
void mark_in_place(const at::Tensor& tensor, const LayoutPtr& layout, const std::string& name);

/// Lays a parameter otherwise: `part`, an ordinary tensor, is what this rank has of it from now on,
/// in `layout`, which its gradient and states share (elsewhere: its shape). What else its mark says
/// stays. The parameter is marked or an ordinary one. `sharded`: for the mark.
void lay_parameter(const at::Tensor& parameter, const at::Tensor& part, const LayoutPtr& layout,
                   const std::string& name, std::shared_ptr<ShardedWeight> sharded);

/// Gives a parameter its accumulator again: LibTorch drops it when `module.to()` changes the
/// parameter's type or device.
void keep_accumulator(const at::Tensor& tensor, const Mark& mark);

/// Whether data replicas keep parts of a parameter (zero_optimization, stage 3).
bool is_sharded(const at::Tensor& parameter);

/// The weight that `tensor` is, where it is one that data replicas keep parts of: not for its
/// gradient, or a copy, which have such a mark too. Null for any other.
ShardedWeight* sharded_weight(const at::Tensor& tensor, const Mark& mark);

/// A tensor with the mark of `like` but for how it lies, and with the history of `local`, which is
/// this rank's part in `layout`: a gathered weight.
at::Tensor marked_in(const at::Tensor& local, const at::Tensor& like, const LayoutPtr& layout);

/// More pipeline stages hold a marked parameter or buffer from now on. `part`: this rank's part on
/// a rank that holds it now, as before where it did; unused elsewhere.
void set_stages_of(const at::Tensor& parameter, StageSet stages, const at::Tensor& part);

/// How a parameter, its gradients and its states lie; all null of an ordinary tensor.
ParameterLayouts layouts_of(const at::Tensor& parameter);

/// Sets how gradients of a marked parameter lie behind their exchange over data replicas, and the
/// states that an optimizer keeps of it: as the parameter does until then. What there is of either
/// is not moved.
void set_layouts(const at::Tensor& parameter, LayoutPtr gradient, LayoutPtr state);

/// Sets `padding_row` of a marked table.
void set_padding_row(const at::Tensor& parameter, int64_t row);

/// Sets `uses` of a marked parameter: one entry for each axis of its mesh, or none, a kind.
void set_weight_uses(const at::Tensor& parameter, std::shared_ptr<const WeightUses> uses);

/// A tensor over the storage of `local` with the mark of `like`, without history. Where another
/// pipeline stage holds the part it says it is on `device`, which is that of `like` if not given.
at::Tensor marked_like(const at::Tensor& local, const at::Tensor& like,
                       std::optional<at::Device> device = std::nullopt);

/// The same for this rank's part of the gradient of `parameter` behind its exchange, and of a state
/// that an optimizer keeps of it: each lies as `layouts_of(parameter)` says. `parameter` is marked.
at::Tensor marked_gradient(const at::Tensor& local, const at::Tensor& parameter);
at::Tensor marked_state(const at::Tensor& local, const at::Tensor& parameter);

/// An ordinary tensor of the sizes, type and device that this rank's part of what `parameter` is
/// has in `layout`: the part itself, without mark and history, where that is the parameter's own
/// layout; else one without content.
at::Tensor blank_in(const at::Tensor& parameter, const LayoutPtr& layout);

/// Marks a gradient that the present backward pass computed, in place: it lies as the parameter
/// does, and is not followed. `marked`: an implementation over its memory, to be told so.
void set_gradient_mark(c10::TensorImpl& marked, const at::Tensor& parameter);

/// What was made like `parameter`, with nothing of its content, is not followed.
void stop_following(const at::Tensor& marked);

/// Sets `made_like` of a new tensor.
void set_made_like(const at::Tensor& marked);

/// Whether a tensor is a gradient of a parameter of pipeline stages, or a state that an optimizer
/// keeps of it: it has the parameter's mark, and memory of its own. What the program made like the
/// parameter, on every rank, is none (Mark::made_like).
bool is_gradient(const at::Tensor& tensor);

/// Gives a marked tensor the mark of another one, which lies as it does.
void share_mark(const at::Tensor& marked, const at::Tensor& of);

/// The value of a marked tensor. Differentiable: its gradient becomes the parameter's, marked at
/// the end of the backward pass.
Value value_of_marked(const at::Tensor& tensor, const Mark& mark);

/// A tensor's values without mark and history, over its memory.
at::Tensor plain_values(const at::Tensor& tensor);

/// The part's plain alias: same storage, no mark, no history. A shape where another pipeline stage
/// holds the part.
at::Tensor unmarked_alias(const at::Tensor& tensor);

}  // namespace oslo
