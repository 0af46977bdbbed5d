#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mpu/base/node_ptr.h"
#include "mpu/group/group.h"
#include "parallelizers/data/sharded/host/host_weights.h"
#include "parallelizers/data/sharded/shard_buckets.h"
#include "parallelizers/data/sharded/shard_pieces.h"
#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// Weights of which each data replica keeps a part, and that are gathered together (ZeRO 3,
/// Rajbhandari et al. 2020, arXiv 1910.02054): those of one layer, or what lies outside of layers.
/// Whole they are there from the first use of one of them until they are let go, or until one of
/// their parts is written.
///
/// Gathering is one all-gather; a backward pass that reaches them is one reduce-scatter, when all
/// gradients of the whole weights are there. What operators save of the whole weights, or of what
/// autocast makes of them, is not kept: backward gathers them again, and lets them go behind the
/// last operator that has saved something of them.
///
/// One thread at a time, of which the backward pass may be another. Collectives are those of the
/// replicas, which must use the same buckets in the same order.
class ShardBucket final : public GatheredWeights, public std::enable_shared_from_this<ShardBucket> {
 public:
  ShardBucket(std::string name, std::shared_ptr<Group> replicas, std::shared_ptr<ShardBuckets> all)
      : name_(std::move(name)), replicas_(std::move(replicas)), all_(std::move(all)) {}
  ShardBucket(const ShardBucket&) = delete;
  ShardBucket& operator=(const ShardBucket&) = delete;

  /// One more weight; `shape` is that of what tensor ranks leave of it to this one. Returns its
  /// number here, by which it is then laid.
  size_t add(const at::Tensor& shape);
  /// `layout`: of the part in `parameter`, whose mark keeps this bucket; `used`: of the whole
  /// weight over tensor ranks and stages, null where the model is an ordinary one.
  void lay_weight(size_t number, const at::Tensor& parameter, const LayoutPtr& layout,
                  LayoutPtr used);

  /// Whole weights lie in memory that the replicas share, of which their parts are stretches: none
  /// is gathered, and gradients are left there. `first`: the number there of weight 0; those of the
  /// bucket follow it. When all weights are laid.
  void lie_on_host(const std::shared_ptr<HostWeights>& host, size_t first);
  /// Weight `number` is about to be written through `tensor` (ShardedWeight::write).
  std::shared_ptr<void> write(size_t number, const at::Tensor& tensor);

  /// What operators compute with in the place of weight `number`: with a history where gradients
  /// are recorded and it is trained.
  at::Tensor whole(size_t number);
  /// This rank's part of the replicas' average of one whole gradient.
  at::Tensor averaged(size_t number, const at::Tensor& gradient);
  /// Autocast has made `cast` of a weight or a view of it: what lies in `of`.
  void cast_made(const at::Tensor& cast, const at::Tensor& of);
  /// The program has got a tensor over the memory of a part that counts its writes apart.
  void count_writes_of(const at::Tensor& data);

  const std::string& name() const { return name_; }
  const std::shared_ptr<ShardBuckets>& all() const { return all_; }
  std::vector<at::Tensor> parts() const override;
  int64_t gathered_bytes() const override;
  void let_go() override;
  void renew_kept() override;

 private:
  struct SavedUses;
  struct Weight {
    at::Tensor shape;
    std::optional<ShardPieces> pieces;  ///< of one that is laid
    LayoutPtr layout, used;
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
    uint32_t version = 0;  ///< of the part, when it was gathered; on a host: last written
    bool trained = false;  ///< when the node was made
  };
  struct Handed {
    c10::weak_intrusive_ptr<c10::TensorImpl> data;
    uint32_t version;
  };

  class WriteOnHost;
  class GradientOnHost;
  using KeptMemory = c10::weak_intrusive_ptr<c10::StorageImpl>;

  void bring(const std::vector<at::Tensor>& parts);
  void read_on_host(const std::vector<at::Tensor>& parts);
  bool leaves_on_host(const std::vector<at::Tensor>& parts) const;
  void leave_on_host(const std::vector<at::Tensor>& gradients);
  void take_from_host(size_t number, const at::Tensor& average);
  bool is_current(const std::vector<at::Tensor>& parts) const;
  bool is_unwritten(const std::vector<at::Tensor>& parts) const;
  void gather(const std::vector<at::Tensor>& parts);
  const at::Tensor& memory();
  at::Tensor memory_for(int64_t elements, const at::TensorOptions& options) const;
  std::shared_ptr<SavedUses> saved_uses();
  void used_in_backward();
  void make_node(const std::vector<at::Tensor>& parts);
  std::vector<at::Tensor> average(const std::vector<at::Tensor>& gradients);
  at::Tensor average_of(const at::Tensor& joined, const JoinedShards& shards) const;
  std::vector<uint32_t> versions() const;
  void check_not_written(const std::vector<uint32_t>& versions) const;

  const std::string name_;
  const std::shared_ptr<Group> replicas_;
  const std::shared_ptr<ShardBuckets> all_;
  std::vector<Weight> weights_;
  at::Tensor memory_;                            ///< of all whole weights, one behind the other
  std::optional<KeptMemory> last_memory_;        ///< alive where a program has kept a view
  bool may_be_written_ = false;                  ///< uncounted, since it was gathered
  std::vector<at::Tensor> wholes_;               ///< over it
  std::vector<std::shared_ptr<void>> regained_;  ///< what is saved of it is not kept
  NodePtr node_;                                 ///< where their gradients arrive
  at::ScalarType node_type_ = at::kFloat;
  std::vector<Handed> handed_;
  std::shared_ptr<HostWeights> host_;  ///< null: weights are gathered
  size_t first_on_host_ = 0;
  std::weak_ptr<SavedUses> saved_uses_;  ///< lives as long as an operator has saved something
};

}  // namespace oslo
