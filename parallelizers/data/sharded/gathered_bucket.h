#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "parallelizers/data/sharded/shard_bucket.h"

namespace oslo {

/// A bucket that is gathered by one all-gather. Whole weights are there from the first use of one
/// of them until they are let go, or until one of their parts is written.
///
/// What operators save of the whole weights, or of what autocast makes of them, is not kept:
/// backward gathers them again, and lets them go behind the last operator that has saved something
/// of them.
class GatheredBucket final : public ShardBucket {
 public:
  GatheredBucket(std::string name, size_t number, std::shared_ptr<Group> replicas,
                 std::shared_ptr<ShardBuckets> all)
      : ShardBucket(std::move(name), number, std::move(replicas), std::move(all)) {}

  std::shared_ptr<void> write(size_t /*number*/, const at::Tensor& /*tensor*/) override {
    return nullptr;  // versions show it
  }
  void count_writes_of(const at::Tensor& data) override;
  int64_t gathered_bytes() const override;
  bool gathers() const override { return true; }
  void let_go() override;
  void renew_kept() override;
  void fill() override {}  // as any tensor that is deferred
  void gather_ahead() override;
  void drop_ahead() override { ahead_.reset(); }

 private:
  /// A gather under way.
  struct Ahead {
    Pending joined;
    std::vector<uint32_t> written;  ///< how often its parts were, when it was started
  };
  /// The writes of a tensor that a program has got over a part, and of its views, which may live
  /// longer.
  struct Handed {
    c10::VariableVersion counter;
    uint32_t version;  ///< when the parts were gathered
  };
  using KeptMemory = c10::weak_intrusive_ptr<c10::StorageImpl>;

  void bring(const std::vector<at::Tensor>& parts) override;
  at::Tensor alias_of_whole(size_t number, const at::Tensor& part) const override;
  /// Since they were gathered.
  bool is_unwritten(const std::vector<at::Tensor>& parts) const;
  std::vector<uint32_t> written(const std::vector<at::Tensor>& parts) const;
  JoinedShards shards() const;
  at::Tensor own_shard(const std::vector<at::Tensor>& parts) const;
  void gather(const std::vector<at::Tensor>& parts);
  void check_others_gather_it(const at::Tensor& joined, const JoinedShards& shards) const;
  void lay_out(const at::Tensor& joined, JoinedShards& shards,
               const std::vector<at::Tensor>& parts);
  void regain_saved();
  at::Tensor memory_for(int64_t elements, const at::TensorOptions& options) const;

  at::Tensor memory_;                      ///< of all whole weights, one behind the other
  std::optional<KeptMemory> last_memory_;  ///< alive where a program has kept a view
  bool may_be_written_ = false;            ///< uncounted, since it was gathered
  std::vector<Handed> handed_;
  std::optional<Ahead> ahead_;
};

}  // namespace oslo
