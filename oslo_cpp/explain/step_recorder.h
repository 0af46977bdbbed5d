#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "mpu/group/group.h"
#include "oslo_cpp/explain/explanation.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// Sees what a model's code does while a function of this thread runs: the operators on its values,
/// how results lie, and what the groups' ledgers count, for which operator, forward and backward.
/// Nothing is changed, and no collective added. Operators of other threads (a pipeline's schedule)
/// are not seen; what is counted for them is listed outside of operators. While it does not run
/// nobody pays for it.
class StepRecorder {
 public:
  /// `groups`: those whose traffic counts. `on_shapes`: results take no memory, and are held until
  /// the run ends, as the graph of a real step holds them: consumers of one value share its
  /// gradient's collective.
  StepRecorder(const ModelView& model, std::vector<std::shared_ptr<Group>> groups,
               std::shared_ptr<ModelContext> context, bool on_shapes = false);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// Runs it, and forgets what was seen before. Throws what it throws.
  void run(const std::function<void()>& step);

  /// What was seen in the last run.
  Explanation take();

 private:
  class Seen;
  std::shared_ptr<Seen> seen_;
  std::vector<std::shared_ptr<Group>> groups_;
  std::shared_ptr<ModelContext> context_;
};

}  // namespace oslo
