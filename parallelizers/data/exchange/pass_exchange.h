#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/data/exchange/ddp_options.h"
#include "parallelizers/data/exchange/gradient_exchange.h"
#include "parallelizers/data/exchange/gradient_watch.h"
#include "parallelizers/data/exchange/stand_ins.h"
#include "parallelizers/modules/model_view.h"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace oslo {

/// The exchange of gradients over data replicas in every backward pass that is to, while it still
/// computes: LibTorch's Reducer (Li et al. 2020, arXiv 2006.15704) fills the buckets, in the order
/// in which gradients arrive, and finds what is unused.
class PassExchange {
 public:
  /// `parameters` are trained, this rank's, and the same on all ranks of the group.
  PassExchange(std::shared_ptr<Group> group, std::vector<NamedTensor> parameters,
               const DDPOptions& options);
  ~PassExchange();
  PassExchange(const PassExchange&) = delete;
  PassExchange& operator=(const PassExchange&) = delete;

  /// Before a forward that records gradients. `exchanges`: its backward pass is to exchange them.
  /// Throws where the exchange before lacks gradients.
  void forward_begins(bool exchanges);
  /// Behind it, with the tensors that it returned if unused parameters are looked for. Whether its
  /// backward pass exchanges: the first of a static graph always does.
  bool forward_ends(bool exchanges, const std::vector<at::Tensor>& outputs);

  /// Bytes, in the order of the exchange.
  std::vector<int64_t> bucket_sizes() const;

 private:
  void hand_out_plain_gradients();
  void make_reducer();
  void begin_anew();
  void gradient_came(size_t index);
  void last_bucket_left();
  void backward_ended();
  void settle_gradients();
  void check_finished() const;

  /// In a static graph the first backward counts how often each gradient comes, and exchanges.
  bool first_of_static() const { return options_.static_graph() && !counted_uses_; }

  std::shared_ptr<Group> group_;
  std::vector<NamedTensor> trained_;
  DDPOptions options_;
  GradientExchange exchange_;
  std::shared_ptr<StandIns> reduced_;  ///< what the reducer knows of `trained_`
  std::shared_ptr<c10d::Reducer> reducer_;
  /// The reducer tells it when other parameters than before are unused, and takes for granted that
  /// it is there.
  std::shared_ptr<c10d::Logger> logger_;

  std::vector<char> came_;            ///< which parameters got a gradient since the last forward
  std::atomic<bool> complete_{true};  ///< all buckets of the last exchange have set out
  std::atomic<bool> end_awaited_{false};
  bool counted_uses_ = false;
  GradientWatch watch_;
};

}  // namespace oslo
