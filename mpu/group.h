#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "mpu/ledger.h"
#include "mpu/shared_nodes.h"

// Declared only: nearly every file of the library includes this one.
namespace c10d {
class Backend;
class ProcessGroup;
class Work;
}  // namespace c10d

namespace oslo {

enum class Reduction { sum, average, min, max };

/// Ranks that communicate: one line of the mesh. Collectives here are plain (not differentiable;
/// see collectives.h) and counted in the group's ledger. At size 1 every one of them returns its
/// argument without a copy. On meta tensors and on fake groups nothing moves, but shapes and counts
/// are those of the real thing.
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
  SharedNodes& shared_copies() { return shared_copies_; }

  /// In a dry run backward does not happen: forward counts what it would move, too.
  void foresee_backward() { foresees_backward_ = true; }
  bool foresees_backward() const { return foresees_backward_; }
  // What the collectives below count, for those that are only foreseen.
  void count_all_reduce(const at::Tensor& tensor);
  void count_all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes);
  void count_reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes);

  /// The reduction over all ranks. The buffer of `tensor` is used when it is contiguous: pass one
  /// that nobody else reads.
  at::Tensor all_reduce(at::Tensor tensor, Reduction reduction = Reduction::sum);

  /// Starts an all-reduce in place on a contiguous tensor.
  c10::intrusive_ptr<c10d::Work> start_all_reduce(at::Tensor& tensor);

  /// Joins the ranks' parts along `dim`; rank r's part has `sizes[r]` there (0 is legal).
  at::Tensor all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes);

  /// Sums `tensor` over all ranks and keeps this rank's `sizes[rank]` along `dim`.
  at::Tensor reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes);

  /// Overwrites `tensor` (contiguous) with that of group rank `root`.
  void broadcast(at::Tensor& tensor, int root = 0);

  /// Every rank's `value`, by group rank. One small collective.
  std::vector<int64_t> exchange(int64_t value);

 private:
  bool silent(const at::Tensor& tensor) const;
  c10d::Backend& backend(const at::Tensor& tensor) const;
  void wait(const c10::intrusive_ptr<c10d::Work>& work, const char* operation) const;
  void count(const char* operation, int64_t elements, const at::Tensor& like);
  std::vector<at::Tensor> gather_parts(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes);

  std::string name_;
  std::vector<int> ranks_;
  int rank_;
  bool fake_;
  bool takes_uneven_parts_;  ///< the backend does; Gloo does not
  bool foresees_backward_ = false;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  std::shared_ptr<Ledger> ledger_;
  SharedNodes shared_copies_;
};

}  // namespace oslo
