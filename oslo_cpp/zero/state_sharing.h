#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/resume/shared_states.h"
#include "oslo_cpp/model/parallel_model.h"
#include "parallelizers/data/zero/gradient_share.h"
#include "parallelizers/data/zero/state_shares.h"
#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// How `ZeroOptimizer` steps its share of the parameters by an optimizer that knows nothing of it:
/// for a step the optimizer's groups list this rank's pieces of the parameters in their place, with
/// the pieces' gradients and states; then the ranks gather what each of them has stepped.
///
/// What is shared out once keeps its owner, so that states stay where they are when parameters are
/// added or frozen. One thread at a time.
class StateSharing {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using States = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

  static constexpr int64_t kBucketBytes = 25 * 1024 * 1024;

  /// Over the data replicas of `parallel`, whose handle it keeps.
  StateSharing(ParallelModel parallel, ShareUnit unit);
  ~StateSharing();
  StateSharing(const StateSharing&) = delete;
  StateSharing& operator=(const StateSharing&) = delete;

  /// Shares out what is in `groups` and was not before: from then on gradients are exchanged so.
  void share_out(const Groups& groups);

  /// Calls `base`, the optimizer's own step, with the groups and states as they are to be for it;
  /// they are as before afterwards, also where it throws. Collective over the replicas.
  void step(torch::optim::Optimizer& optimizer, const std::function<void()>& base);

  SharedStates::Whole whole_states(const torch::optim::Optimizer& optimizer) const;
  /// `groups`: of the optimizer.
  void states_replaced(const Groups& groups);
  /// The same where what was put there is this rank's share.
  void shares_replaced(const Groups& groups);

 private:
  /// A parameter that is shared out, of other stages, too: what one gets depends on all, and a
  /// stage may come to hold it.
  struct Shared {
    at::Tensor parameter;
    LayoutPtr layout;              ///< of the parameter, when it was shared out
    std::vector<int64_t> strides;  ///< of its memory then, whose elements are counted
    c10::ScalarType type;          ///< then
    SharedPiece piece;             ///< this rank's; of no length: none
    std::vector<int64_t> sizes;    ///< elements of every rank's piece
    GradientSharePtr gradient;     ///< null: it is the same on all replicas
    at::Tensor part = {};          ///< the piece, over the parameter's memory; it, if it is whole
    at::Tensor exchanged = {};     ///< its own gradient, while it is stepped whole
    bool cut = false;              ///< the state is the piece's
    bool stepped = false;          ///< it is in a bucket; false where other stages hold it
  };
  class Swapped;

  /// Stage 3: their states are parts already, and what is whole has a gradient on all replicas.
  static bool keeps_parts_of_weights(const Groups& groups);
  static void forget_gradient(Shared& shared);
  /// Where memory formats or types have changed, makes the states whole, to be shared out anew.
  void join_relaid(torch::optim::Optimizer& optimizer);
  std::vector<at::Tensor> new_in(const Groups& groups);
  void add(const at::Tensor& parameter, const SharedRows& rows);
  void share_gradient_of(Shared& shared, const SharedRows& rows);
  void bucket_new();
  void compare_replicas(const std::vector<at::Tensor>& fresh);
  ContextPtr context_of_shares();
  // What cannot be shared out is refused by name (share_checks.cpp).
  void check_replicas(const Group& now) const;
  void check_layout(const Shared& shared) const;
  void check_apart() const;
  void check_types() const;
  static void check_gradient(const at::Tensor& parameter);
  static void check_state(const Shared& shared, const std::string& field, const at::Tensor& tensor);
  /// Leaves this rank's share of a state in its place.
  void cut_state(Shared& shared, States& states, const torch::optim::Optimizer& optimizer) const;
  void lay_out(Shared& shared) const;
  at::Tensor gradient_of_piece(const Shared& shared) const;
  void give() const;
  const at::Tensor& any_of(const SharedBucket& bucket) const;
  void put(const SharedBucket& bucket, const at::Tensor& all) const;

  ParallelModel parallel_;
  ShareUnit unit_;
  std::shared_ptr<Group> group_;
  std::optional<RowSharing> rows_;
  ContextPtr shares_;  ///< what gradients that are shared out share; made with the first
  std::vector<Shared> shared_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_;
  std::vector<SharedBucket> buckets_;  ///< of places in `shared_`
  bool compared_ = false;              ///< replicas have been, once at least
  bool loaded_shares_ = false;         ///< and no step since
};

/// What the optimizer of a model steps when nobody says what: each parameter that the model
/// computes with, once.
std::vector<at::Tensor> stepped_by_default(const ParallelModel& parallel);

/// What the model registers and does not compute with: a tied layer's first weight.
std::vector<at::Tensor> registered_without_use(const ParallelModel& parallel);

}  // namespace oslo
