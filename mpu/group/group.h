#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "mpu/base/ledger.h"
#include "mpu/group/shared_nodes.h"
#include "mpu/transport/presence/pending.h"

// Declared only: nearly every file of the library includes this one.
namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace oslo {

class Messages;
class PendingMessage;
class PendingSend;
enum class Mover : int;

enum class Reduction { sum, average, min, max };

/// One dimension, and how much of it belongs to each rank, in the ranks' order.
struct PartsAlong {
  int64_t dim;
  c10::IntArrayRef sizes;
};

/// Ranks that communicate: one line of the mesh. Collectives here are plain (not differentiable;
/// see collectives.h) and counted in the group's ledger. At size 1 every one of them returns its
/// argument without a copy. On meta tensors and on fake groups nothing moves, but shapes and counts
/// are those of the real thing. Each can also be started, and waited for later (`start_...`): all
/// ranks start in one order. What fails or takes longer than the group's time limit throws an
/// `Error` that names operation, group and rank.
class Group {
 public:
  /// `ranks` are the members' ranks in the world, in the group's order. The ledger is that of the
  /// process group where it has one (those of an MPU do).
  Group(std::string name, std::vector<int> ranks, int rank,
        c10::intrusive_ptr<c10d::ProcessGroup> process_group);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const { return process_group_; }
  Ledger& ledger() { return *ledger_; }
  /// How errors of this group's operations go on after the operation's name.
  const Pending::Label& label() const { return label_; }
  SharedNodes& shared_copies() { return shared_copies_; }

  /// In a dry run backward does not happen: forward counts what it would move, too.
  void foresee_backward() { foresees_backward_ = true; }
  bool foresees_backward() const { return foresees_backward_; }
  // What the collectives below count, also for those that are only foreseen: then no byte moves.
  void count_all_reduce(const at::Tensor& tensor, int64_t moved = 0);
  void count_all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes,
                        int64_t moved = 0);
  void count_reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes,
                            int64_t moved = 0);
  void count_all_to_all(const at::Tensor& part, const PartsAlong& split, const PartsAlong& join,
                        int64_t moved = 0);

  /// The reduction over all ranks. The buffer of `tensor` is used when it is contiguous: pass one
  /// that nobody else reads.
  at::Tensor all_reduce(at::Tensor tensor, Reduction reduction = Reduction::sum);
  Pending start_all_reduce(at::Tensor tensor, Reduction reduction = Reduction::sum);

  /// Joins the ranks' parts along `dim`; rank r's part has `sizes[r]` there (0 is legal). Between
  /// hosts and on devices parts travel padded to the largest.
  at::Tensor all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes);
  Pending start_all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes);

  /// Sums `tensor` over all ranks and keeps this rank's `sizes[rank]` along `dim`.
  at::Tensor reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes);
  Pending start_reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes);

  /// Sends the pieces of `part` along `split.dim` to the ranks, and joins what they send along
  /// `join.dim`; rank r's piece has `join.sizes[r]` there (0 is legal). With two dimensions a value
  /// that lies in parts `join` comes to lie in parts `split` (DeepSpeed-Ulysses, arXiv 2309.14509:
  /// of the sequence, of the heads); with one, rows go where they are wanted (experts, borders).
  at::Tensor all_to_all(const at::Tensor& part, const PartsAlong& split, const PartsAlong& join);
  Pending start_all_to_all(const at::Tensor& part, const PartsAlong& split, const PartsAlong& join);

  /// Overwrites `tensor` (contiguous, no zeros without memory) with that of group rank `root`.
  void broadcast(at::Tensor& tensor, int root = 0);
  Pending start_broadcast(at::Tensor tensor, int root = 0);

  /// Messages between two ranks of the group (group ranks): see messages.h.
  void send(c10::ArrayRef<at::Tensor> tensors, int to, int tag = 0);
  PendingSend start_send(std::vector<at::Tensor> tensors, int to, int tag = 0);
  std::vector<at::Tensor> receive(int from, int tag = 0, c10::ArrayRef<at::Tensor> like = {});
  PendingMessage start_receive(int from, int tag = 0, c10::ArrayRef<at::Tensor> like = {});

  /// Every rank's `value`, by group rank. One small collective.
  std::vector<int64_t> exchange(int64_t value);

 private:
  bool silent(const at::Tensor& tensor) const;
  Mover mover(const at::Tensor& tensor) const;
  c10d::Backend& backend(const at::Tensor& tensor) const;
  Pending pending(c10::intrusive_ptr<c10d::Work> work, at::Tensor written, const char* operation);
  /// `moved` in bytes.
  void count(const char* operation, int64_t elements, int64_t moved, const at::Tensor& like);
  int64_t all_reduce_brings(const at::Tensor& tensor) const;

  // The started forms; `awaited`: the caller waits at once, so that nobody else need be woken.
  Pending begin_all_reduce(at::Tensor tensor, Reduction reduction, bool awaited);
  Pending begin_all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes,
                           bool awaited);
  Pending begin_reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes,
                               bool awaited);
  Pending begin_all_to_all(const at::Tensor& part, const PartsAlong& split, const PartsAlong& join,
                           bool awaited);
  Pending begin_broadcast(at::Tensor tensor, int root, bool awaited);
  Pending gather_padded(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes, bool awaited);
  Pending scatter_by_exchange(const at::Tensor& buffer, int64_t dim, c10::IntArrayRef sizes,
                              bool awaited);
  Pending scatter_padded(const at::Tensor& buffer, int64_t dim, c10::IntArrayRef sizes,
                         bool awaited);

  std::string name_;
  std::vector<int> ranks_;
  int rank_;
  Mover mover_;  ///< of CPU tensors
  bool foresees_backward_ = false;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  std::shared_ptr<Ledger> ledger_;
  Pending::Label label_;
  SharedNodes shared_copies_;
  std::shared_ptr<Messages> messages_;
};

}  // namespace oslo
