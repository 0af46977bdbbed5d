#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/placement/residency/stage_ranks.h"
#include "parallelizers/placement/residency/stage_set.h"

namespace c10 {
struct IValue;
}

namespace oslo {

struct OperatorEntry;
struct Value;
class ContentProvider;
class GradientNotes;
class ModelContext;
class StageCarrier;

/// Where one call of an operator runs.
struct CallPlace {
  StageSet stages = {};    ///< that run it; empty: every rank does
  bool elsewhere = false;  ///< this rank is on none of them, and works on shapes
  bool on_zeros = false;   ///< on zeros in place of shapes
};

/// Where the values of a model live, if not all of them on every rank, and who answers for those
/// that this rank has not got: a shape without content stands for them. A model whose ranks hold
/// everything has none (`ModelContext::residence`), and nothing is asked.
///
/// Where a value lives its layout says (`Layout::stages`), as stages of a pipeline. So it does
/// - between steps of a pipeline: `EvaluationResidence` (parallelizers/pipeline/crossing/),
/// - in a step: `StepResidence` (parallelizers/pipeline/run/),
/// - in the planner's runs, where no rank has content: `DryResidence` (parallelizers/plan/dry/),
/// which have `StageResidence` (placement/elsewhere/) in common. Another kind, a weight that one
/// data rank holds or an activation that lies on the host, is one more heir of this class: `begin`
/// says who runs a call and brings what it writes, `operand` brings what it takes, and `call` and
/// `read` stand in for ranks that hold none of it.
class Residence {
 public:
  /// `pipeline`: the ranks that have this one's place along it, by pipeline rank; null where there
  /// are none to send to.
  Residence(StageRanks ranks, std::shared_ptr<Group> pipeline, at::Device device)
      : ranks_(std::move(ranks)),
        pipeline_(std::move(pipeline)),
        device_(std::make_shared<at::Device>(device)) {}
  virtual ~Residence() = default;

  /// Which stages this rank has, and where the others are.
  const StageRanks& ranks() const { return ranks_; }
  bool holds(StageSet stages) const { return ranks_.holds(stages); }
  const std::shared_ptr<Group>& pipeline() const { return pipeline_; }

  /// What values that are elsewhere say they are on: the model's device. It follows `model->to`
  /// (carrier/graph/set_data.h).
  at::Device device() const { return *device_; }
  void move_to(at::Device device) { *device_ = device; }

  // One call of an operator. All ranks ask alike, and what one refuses all refuse.
  /// Before a rule sees it. Takes what the call writes in place to where it runs.
  virtual CallPlace begin(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
                          const std::shared_ptr<const ModelContext>& context) = 0;
  /// What `value`, the inside of the argument `tensor`, is where the call runs.
  virtual Value operand(const CallPlace& place, const OperatorEntry& op,
                        c10::ArrayRef<c10::IValue> arguments, const at::Tensor& tensor,
                        Value value) = 0;
  /// The operator on shapes, where it runs elsewhere.
  virtual std::vector<c10::IValue> call(const OperatorEntry& op,
                                        std::vector<c10::IValue> arguments) = 0;
  /// The same, of an operator that reads elements, which shapes do not have. Throws where nobody
  /// imagines any.
  virtual std::vector<c10::IValue> read(const OperatorEntry& op,
                                        std::vector<c10::IValue> arguments) = 0;
  /// Called where `call` threw for want of a kernel for shapes: from then on the operator runs on
  /// zeros. Throws where elements decide what it returns.
  virtual void put_on_zeros(const OperatorEntry& op,
                            c10::function_ref<std::vector<c10::IValue>()> arguments) = 0;

  // Who answers.
  /// Gives content where no rank has any (elsewhere/content_provider.h). Null: what is elsewhere
  /// exists, on other ranks.
  virtual ContentProvider* imagined() const { return nullptr; }
  /// Takes values to other stages where no thread's carrier does, and no gradient is recorded.
  /// Null: nobody does.
  virtual StageCarrier* carrier() const { return nullptr; }
  /// Called where the thread has no carrier and a value is needed on another stage, as `needs`
  /// says.
  virtual void check_carried(c10::function_ref<std::string()> /*needs*/) const {}
  /// What the program computed from gradients; null: nobody has to know.
  virtual GradientNotes* from_gradients() const { return nullptr; }
  /// Whether several micro-batches are under way at a time, and come to an operator in another
  /// order on each rank.
  virtual bool interleaves() const { return false; }
  /// Why values that are elsewhere may not be used any more; empty while they may.
  virtual std::string ended() const { return {}; }

 protected:
  /// With the same device, as long as both live.
  Residence(const Residence&) = default;
  Residence& operator=(const Residence&) = delete;

 private:
  const StageRanks ranks_;
  const std::shared_ptr<Group> pipeline_;
  const std::shared_ptr<at::Device> device_;
};

}  // namespace oslo
