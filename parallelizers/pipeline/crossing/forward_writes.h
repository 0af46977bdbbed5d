#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

namespace oslo {

/// The parameters and buffers that a forward writes (running averages, counters), and where each
/// rank of the pipeline stands when it uses one for the last time: the stage in whose action, or -1
/// where it does not. Ranks with several stages have several micro-batches in the middle of the
/// forward. A micro-batch finds what the one before it has left only if its uses are all in one
/// action, so that the first of them waits for the last one's.
class ForwardWrites {
 public:
  /// That `rank`, where it stands in `stage`'s action, uses or writes `tensor`.
  void add(const at::Tensor& tensor, int rank, int stage, bool writes);
  /// What else is known of a forward, of another mode perhaps.
  void add(const ForwardWrites& other);
  /// Forgets what is only read.
  void keep_written();

  /// The stage by rank; null of a tensor that is not written, as far as is known.
  const std::vector<int>* places(const at::Tensor& tensor) const;

  bool operator==(const ForwardWrites& other) const;

 private:
  struct Use {
    at::Tensor tensor;
    std::vector<int> places;
    bool written = false;
  };
  std::map<const c10::TensorImpl*, Use> uses_;
};

/// Whether the micro-batches of a step use and write each tensor of this rank one after the other,
/// as on one device.
class UseOrder {
 public:
  /// False where a later micro-batch has written it already, or has read what is written now.
  bool note(const at::Tensor& tensor, int micro_batch, bool writes);

 private:
  struct Latest {
    int reader = -1, writer = -1;
  };
  std::map<const c10::TensorImpl*, Latest> latest_;
};

}  // namespace oslo
