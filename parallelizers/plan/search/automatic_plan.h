#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/layers/layer_plan.h"

namespace oslo {

/// What the search found out beside the plan itself.
struct PlanSearch {
  DryCost structural;  ///< of the plan it started from
  /// Never more bytes than that, but for what cutting large parameters and recurrent layers adds,
  /// which it leaves whole.
  DryCost found;
  /// Where every layer is whole and one rank has the model: what a step would take on one device.
  double one_device = 0;
  int64_t runs = 0;  ///< dry runs it took
  /// Operators that asked for values and were given zeros: what follows them may differ in truth.
  std::vector<std::string> value_readers;
  /// Members of layers that the forward assigned something computed to.
  std::vector<MemberKeeper::Computed> computed;
};

/// Decides how each layer is cut by what a training step would take, counted in dry runs of the
/// model's own forward: seconds of operators and collectives by the machine's `rates`. `layers`
/// come with a first plan (by structure, with what patterns and policies ask for, which stays).
///   - Roles that hold 2% of the parameters or more are cut, for their memory. Smaller ones stay
///     whole only where cutting them takes over 10% of the step, or more gathers; so do recurrent
///     layers of any size, which communicate at every step; tables, which have no work to share,
///     and what the first plan leaves whole, wherever that is quicker.
///   - Never more bytes than the first plan moves, but where recurrent layers are cut, which it
///     leaves whole; then the fewest gathers; then the least time.
///     Layers of the same role (h.0.mlp.c_fc, h.1.mlp.c_fc, ...) are planned once. Each role in
///     turn takes its quickest cut, from nothing; the better of that and the first plan is
///     improved, one role and two neighbouring roles at a time, until nothing helps.
///   - With `cut_own_parameters`, large parameters of two or more dimensions outside of layers,
///     which the first plan leaves whole, are cut last and on top of that, unless every cut of them
///     has to be gathered or changes what the forward calls (it then reads a size, which is the
///     local one).
///   - With a `memory_limit` in bytes (0: none), what exceeds it counts before anything else, and
///     every layer may be cut.
/// The search cuts over `axes.searched`; what patterns and policies say of other axes stays.
/// Deterministic: every rank finds the same. Alpa (arXiv 2201.12023) and torch's auto-parallel
/// search over operators; here the rules decide those, so that weights are enough.
/// Throws what the example throws, and what `FirstWrites::check` throws: `writes` learns what the
/// example writes to, also when it throws.
PlanSearch plan_automatically(std::vector<LayerPlan>& layers, const ModelView& model,
                              const PlanAxes& axes, const std::function<void()>& example,
                              FirstWrites& writes, bool cut_own_parameters = false,
                              const Rates& rates = Rates::nominal(), int64_t memory_limit = 0);

}  // namespace oslo
