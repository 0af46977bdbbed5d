#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/data/exchange/ddp_options.h"
#include "parallelizers/data/exchange/gradient_watch.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// The exchange of gradients in backward passes where replicas share some of them out
/// (`GradientShare`). LibTorch's Reducer would hold all of every gradient from step to step; here a
/// bucket is packed when its last gradient has come, whole gradients are given back then, and two
/// buckets are under way at most.
///
/// Every backward pass behind a forward that exchanges does, whatever part of the model it is of,
/// in one order of buckets on all ranks: what has not come by the end of the pass counts as zeros.
/// A gradient that comes twice in a pass (of a backward inside it) makes it exchange twice. After a
/// pass that threw, buckets that were under way are waited for.
class SharedPassExchange {
 public:
  /// `parameters` are trained, this rank's, and the same and shared out alike on all ranks of the
  /// group.
  SharedPassExchange(std::shared_ptr<Group> group, std::vector<NamedTensor> parameters,
                     const DDPOptions& options);
  ~SharedPassExchange();
  SharedPassExchange(const SharedPassExchange&) = delete;
  SharedPassExchange& operator=(const SharedPassExchange&) = delete;

  /// Before a forward that records gradients. Throws where backward passes of the one before gave
  /// this rank no gradient for a parameter, unless options say that this may be.
  void forward_begins();
  /// Behind it. `exchanges`: its backward passes are to exchange.
  void forward_ends(bool exchanges);

  /// Bytes of a rank's whole gradients, in the order of the exchange.
  std::vector<int64_t> bucket_sizes() const;

  /// Whether this is how gradients are shared out now.
  bool fits() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  GradientWatch watch_;
};

}  // namespace oslo
