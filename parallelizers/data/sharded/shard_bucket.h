#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mpu/base/node_ptr.h"
#include "mpu/group/group.h"
#include "parallelizers/data/sharded/shard_buckets.h"
#include "parallelizers/data/sharded/shard_pieces.h"
#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// Weights of which each data replica keeps a part, and that are whole together (ZeRO 3,
/// Rajbhandari et al. 2020, arXiv 1910.02054): those of one layer, or what lies outside of layers.
/// How they come to be whole is a class of its own: GatheredBucket, HostBucket.
///
/// A backward pass that reaches them is one reduce-scatter, when all gradients of the whole weights
/// are there, unless the class has another way for gradients.
///
/// One thread at a time, of which the backward pass may be another. Collectives are those of the
/// replicas, which must use the same buckets in the same order.
class ShardBucket : public GatheredWeights, public std::enable_shared_from_this<ShardBucket> {
 public:
  ShardBucket(const ShardBucket&) = delete;
  ShardBucket& operator=(const ShardBucket&) = delete;

  /// One more weight; `shape` is that of what tensor ranks leave of it to this one, `place` its
  /// number among all of the model, on whatever stages. Returns its number here, by which it is
  /// then laid.
  size_t add(const at::Tensor& shape, size_t place);
  /// `layout`: of the part in `parameter`, whose mark keeps this bucket; `used`: of the whole
  /// weight over tensor ranks and stages, null where the model is an ordinary one.
  virtual void lay_weight(size_t number, const at::Tensor& parameter, const LayoutPtr& layout,
                          LayoutPtr used);

  /// What operators compute with in the place of weight `number`: with a history where gradients
  /// are recorded and it is trained.
  at::Tensor whole(size_t number);
  /// This rank's part of the replicas' average of one whole gradient; undefined where it comes when
  /// the pass has ended.
  at::Tensor averaged(size_t number, const at::Tensor& gradient);
  /// Autocast has made `cast` of a weight or a view of it: what lies in `of`. What operators save
  /// of it is not kept.
  void cast_made(const at::Tensor& cast, const at::Tensor& of);
  /// Weight `number` is about to be written through `tensor` (ShardedWeight::write).
  virtual std::shared_ptr<void> write(size_t number, const at::Tensor& tensor) = 0;
  /// Whether whole weights are gathered, by all replicas together.
  virtual bool gathers() const = 0;
  /// The program has got a tensor over the memory of a part that counts its writes apart.
  virtual void count_writes_of(const at::Tensor& data) = 0;

  const std::string& name() const override { return name_; }
  const std::shared_ptr<ShardBuckets>& all() const { return all_; }
  std::vector<at::Tensor> parts() const override;
  int64_t whole_bytes() const override;
  void let_go() override { regained_.clear(); }

 protected:
  struct Weight {
    at::Tensor shape;
    size_t place;
    std::optional<ShardPieces> pieces;  ///< of one that is laid
    LayoutPtr layout, used;
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
    uint32_t version = 0;  ///< of the part, as the whole weight shows it
    bool trained = false;  ///< when the node was made
  };

  /// `number`: its place in `all`.
  ShardBucket(std::string name, size_t number, std::shared_ptr<Group> replicas,
              std::shared_ptr<ShardBuckets> all)
      : name_(std::move(name)),
        number_(number),
        replicas_(std::move(replicas)),
        all_(std::move(all)) {}

  /// `wholes_` are there, and show what the parts are.
  virtual void bring(const std::vector<at::Tensor>& parts) = 0;
  /// Another tensor over a whole weight that is there, without history.
  virtual at::Tensor alias_of_whole(size_t number, const at::Tensor& part) const = 0;
  /// Whether gradients of whole weights, which a backward pass hands over here, go another way
  /// than one reduce-scatter.
  virtual bool take_gradients(const std::vector<at::Tensor>& parts,
                              const std::vector<at::Tensor>& gradients);
  /// The same of one that comes by itself: an ordinary tensor.
  virtual bool take_gradient(size_t number, const at::Tensor& gradient);

  /// The versions of the parts that whole weights show now, and an error where the parts have been
  /// written since.
  std::vector<uint32_t> versions() const;
  void check_not_written(const std::vector<uint32_t>& versions) const;
  /// For whatever is saved of the bucket's weights to hold: in a backward pass the bucket is let go
  /// behind the last of them.
  std::shared_ptr<void> saved_use();
  void used_in_backward();

  const std::string name_;
  const size_t number_;
  const std::shared_ptr<Group> replicas_;
  const std::shared_ptr<ShardBuckets> all_;
  std::vector<Weight> weights_;
  std::vector<at::Tensor> wholes_;               ///< where they are there, by number
  std::vector<std::shared_ptr<void>> regained_;  ///< what is saved of it is not kept

 private:
  struct SavedUses;

  NodePtr node_for(const std::vector<at::Tensor>& parts);
  NodePtr make_node(const std::vector<at::Tensor>& parts);
  std::vector<at::Tensor> average(std::vector<at::Tensor> gradients);
  void check_others_average_it(const at::Tensor& tag) const;
  at::Tensor average_of(const at::Tensor& joined, const JoinedShards& shards) const;

  WeakNodePtr node_{NodePtr()};  ///< where gradients of whole weights arrive
  at::ScalarType node_type_ = at::kFloat;
  std::weak_ptr<SavedUses> saved_uses_;  ///< lives as long as an operator has saved something
};

}  // namespace oslo
