#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mpu/base/node_ptr.h"
#include "parallelizers/modules/parameters_in_use.h"
#include "parallelizers/placement/layout/cuts/cut.h"
#include "parallelizers/placement/layout/layout.h"
#include "parallelizers/plan/dry/call_digest.h"
#include "parallelizers/plan/dry/dry_residence.h"
#include "parallelizers/plan/dry/memory_tape.h"
#include "parallelizers/plan/dry/work_meter.h"
#include "parallelizers/plan/dry/write_watch.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/stages/balance.h"
#include "parallelizers/stages/stage_map.h"

namespace torch::autograd {
struct Node;
}

namespace oslo {

/// What one forward pass, and the backward pass that would follow it, moves. As rank 0 receives it.
struct DryCost {
  int64_t bytes = 0;    ///< of all collectives, at ring cost
  int64_t gathers = 0;  ///< operators that had to gather
  uint64_t calls = 0;   ///< a digest of what the forward called; changes where it reads local sizes
  double seconds = 0;   ///< of operators and collectives, by the machine's rates
  double waiting = 0;   ///< of those, seconds in collectives
  int64_t parameter_bytes = 0;  ///< of parameters and their gradients, on rank 0
  int64_t kept_bytes = 0;       ///< at most, of results that wait for backward

  int64_t memory() const { return parameter_bytes + kept_bytes; }

  /// Of a plan that the model cannot run with: more than any other.
  static DryCost impossible() {
    DryCost cost;
    cost.bytes = cost.gathers = std::numeric_limits<int64_t>::max();
    cost.seconds = std::numeric_limits<double>::infinity();
    return cost;
  }
  bool possible() const { return bytes < std::numeric_limits<int64_t>::max(); }
};

/// Runs a model's own forward as rank 0 of a pretended group, on shapes without content, to see
/// what a plan would cost. While it lives the model's parameters and buffers are shapes; afterwards
/// they are what they were, and so are the random states and the members of layers. It takes no
/// memory to speak of.
class DryRun {
 public:
  /// `example` runs the forward. `axes` are those that layers are cut over. `writes` learns what
  /// the forward writes to. `rates` must outlive it.
  DryRun(const ModelView& model, const PlanAxes& axes, std::function<void()> example,
         FirstWrites& writes, const Rates& rates);
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  /// Runs the forward with the layers cut as planned. Where operators ask for other blocks or units
  /// the layers take them over and the run is repeated. Throws what the forward throws, and what
  /// `FirstWrites::check` throws.
  DryCost run(std::vector<LayerPlan>& layers);

  /// Gives parameters and buffers their pipeline stages, of which this run sees all as elsewhere;
  /// until then all are on one.
  void set_stages(const StageMap& stages) { stages_ = stages; }
  /// Seconds that the last run took on them, forward, backward and in collectives: a line for each
  /// set of stages that compute something together. Without what sending between stages takes.
  const std::vector<UnitCost>& stage_work() const { return stage_work_; }

  /// Bytes of rank 0's part of a parameter or buffer, as the last run had it.
  struct TensorBytes {
    at::Tensor tensor;
    int64_t bytes = 0;
    bool trains = false;
  };
  std::vector<TensorBytes> model_bytes() const;

  /// Notes what the next runs do with memory; null: nothing.
  void set_tape(std::shared_ptr<MemoryTape> tape) { tape_ = std::move(tape); }

  /// Tells of partial sums that end in the next runs; null: nobody.
  void watch_sums(std::shared_ptr<SumWatch> watch) { context_->sum_watch = std::move(watch); }

  /// Holds what operators take of whose results only the shapes are known, until a run ends, as a
  /// step's graph would: consumers of one value then share its gradient's collective there, too.
  void hold_operands() { holds_operands_ = true; }

  /// Layers whose weight the forward computed so far.
  const std::vector<MemberKeeper::Computed>& computed() const { return members_.computed(); }

  /// What the forward reads is ones from then on, where it was zeros.
  void imagine_ones() { residence_->content().imagine_ones(true); }

  /// Operators that asked for values and were given zeros, or ones.
  const std::vector<std::string>& value_readers() const { return residence_->content().readers(); }
  int64_t runs() const { return runs_; }

  /// What the values of its runs share, and the groups over which they are cut.
  const std::shared_ptr<ModelContext>& context() const { return context_; }
  std::vector<std::shared_ptr<Group>> groups() const {
    std::vector<std::shared_ptr<Group>> groups;
    for (int axis = 0; axis < context_->mesh().axes(); ++axis) {
      groups.push_back(context_->mesh().axis(axis));
    }
    return groups;
  }

 private:
  struct Held {
    at::Tensor tensor;
    at::Tensor original;                ///< over its storage, with its mark
    at::Tensor shape;                   ///< the global one
    NodePtr accumulator;                ///< somebody's hooks may be on it
    LayoutPtr decided;                  ///< how an earlier initialize cut it; null where none did
    std::vector<Placement> placements;  ///< one an axis
    bool in_graph = false;              ///< before
    bool placed = false;
  };

  void place(const at::Tensor& tensor, const std::vector<Placement>& placements,
             const std::string& name, const LayerPlan* layer);
  Layout planned_layout(const Held& held, const std::string& name, const LayerPlan* layer);
  void place_all(const std::vector<LayerPlan>& layers);
  void hold(const at::Tensor& tensor);
  DryCost run_once();
  DryCost run_or_again();
  DryCost run_past_checks();
  /// What the groups' ledgers say.
  struct Collectives {
    int64_t bytes = 0;
    double seconds = 0;
  };
  Collectives collectives() const;
  void leave_graph();
  DryCost cost_of(const Work& work) const;
  bool take_wishes(std::vector<LayerPlan>& layers) const;

  struct Padding {
    std::shared_ptr<torch::nn::Module> layer;
    std::optional<int64_t> row;
  };
  const ModelView model_;
  std::function<void()> example_;
  FirstWrites& writes_;
  const Rates& rates_;
  std::shared_ptr<CallDigest> calls_;
  std::shared_ptr<DryResidence> residence_;
  std::shared_ptr<ModelContext> context_;
  MemberKeeper members_;
  std::map<const c10::TensorImpl*, Held> held_;
  std::vector<std::pair<at::Tensor, at::Tensor>> unsaved_;  ///< memory and what was there
  std::vector<Padding> paddings_;
  /// By axis and parameter name.
  std::map<std::pair<std::string, std::string>, std::shared_ptr<CutOrigin>> origins_;
  StageMap stages_;
  std::shared_ptr<MemoryTape> tape_;
  std::vector<UnitCost> stage_work_;
  bool holds_operands_ = false;
  bool succeeded_ = false;  ///< once
  bool stands_in_ = false;  ///< for kernels that LibTorch's backward lacks
  std::vector<std::vector<c10::IValue>> held_operands_;
  int64_t runs_ = 0;
};

}  // namespace oslo
