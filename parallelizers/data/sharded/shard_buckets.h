#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallelizers/data/sharded/gather_ahead.h"
#include "parallelizers/data/sharded/shard_copies.h"

namespace oslo {

class HostWeights;

/// What comes and goes together.
class GatheredWeights : public Gatherable {
 public:
  virtual const std::string& name() const = 0;
  /// What this rank has of them between their uses.
  virtual std::vector<at::Tensor> parts() const = 0;
  /// Bytes of the whole weights, wherever they are, and where they are there.
  virtual int64_t whole_bytes() const = 0;
  virtual int64_t gathered_bytes() const = 0;
  /// Gives them back, but for what somebody still holds.
  virtual void let_go() = 0;
  /// Views of them that a program has kept over a write of the parts show the new content.
  virtual void renew_kept() = 0;
  /// Parts that have no content yet (deferred construction) get it where they lie.
  virtual void fill() = 0;
};

/// Until when whole weights stay there.
enum class KeepGathered {
  until_next,      ///< of a layer until others need its room; what lies outside: a forward's end
  until_backward,  ///< until a backward pass has used them
  until_written,   ///< until their parts are written, or `let_all_go`: for several micro-batches
};

/// The buckets of one model, and which of them stay gathered.
class ShardBuckets : public std::enable_shared_from_this<ShardBuckets> {
 public:
  /// `copies`: ranks that have the parts that this one has; null: none but this one. `host`: where
  /// the weights lie whole; null where they are gathered.
  explicit ShardBuckets(KeepGathered keep, std::shared_ptr<Group> copies = nullptr,
                        std::shared_ptr<HostWeights> host = nullptr)
      : keep_(keep), copies_(std::move(copies)), host_(std::move(host)) {}

  /// `of_layer`: its weights are one layer's.
  void add(const std::shared_ptr<GatheredWeights>& bucket, bool of_layer);

  /// Of the bucket that was added as number `number`.
  std::string name_of(size_t number) const;

  void about_to_gather(const GatheredWeights& bucket);
  void has_gathered(const std::shared_ptr<GatheredWeights>& bucket);
  void forward_begins();
  /// A forward is done; its backward pass, if there is one, is yet to come.
  void forward_ended();
  /// Whole weights are used. In a backward pass: none of them stay behind it, nor where it throws.
  void about_to_use();
  /// A backward pass has no more use for them.
  void used_in_backward(GatheredWeights& bucket);
  void let_all_go();
  void fill();

  ShardCopies& copies() { return copies_; }
  const std::shared_ptr<HostWeights>& host() const { return host_; }
  /// In a backward pass: this rank's parts get gradients.
  void gradients_come();
  /// Averages the gradients of all parts over their copies.
  void average_over_copies();

  /// Bytes of whole weights that are there now.
  int64_t gathered_bytes() const;

 private:
  class Pass;
  struct Entry {
    std::weak_ptr<GatheredWeights> bucket;
    bool of_layer;
    uint64_t gathered = 0;  ///< when, among all gathers
  };
  void make_room_for(const GatheredWeights& layer);
  const KeepGathered keep_;
  ShardCopies copies_;
  const std::shared_ptr<HostWeights> host_;
  std::vector<Entry> buckets_;
  uint64_t gathers_ = 0;
  std::weak_ptr<Pass> pass_;
  bool in_forward_ = false;
  GatherAhead ahead_;
};

}  // namespace oslo
