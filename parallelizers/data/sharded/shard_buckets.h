#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace oslo {

class ShardBucket;

/// The buckets of one model, and which of them stay gathered: with `reshard` those of layers until
/// the next one is gathered, what lies outside of layers until the forward has ended; without it
/// all, until the backward pass has used them.
class ShardBuckets {
 public:
  explicit ShardBuckets(bool reshard) : reshard_(reshard) {}

  /// `of_layer`: its weights are one layer's.
  void add(const std::shared_ptr<ShardBucket>& bucket, bool of_layer);

  void about_to_gather(const ShardBucket& bucket);
  /// A forward is done; its backward pass, if there is one, is yet to come.
  void forward_ended();
  /// A backward pass has no more use for them.
  void used_in_backward(ShardBucket& bucket);

  /// Bytes of whole weights that are there now.
  int64_t gathered_bytes() const;

 private:
  struct Entry {
    std::weak_ptr<ShardBucket> bucket;
    bool of_layer;
  };
  const bool reshard_;
  std::vector<Entry> buckets_;
};

}  // namespace oslo
