#include "oslo_cpp/explain/step_recorder.h"

#include <c10/core/ScalarType.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "oslo_cpp/explain/why.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/layout/gather_watch.h"
#include "parallelizers/placement/operators/operator_watch.h"

namespace oslo {
namespace {

ExplainedValue value_seen(const at::Tensor& tensor) {
  ExplainedValue seen;
  seen.type = c10::toString(tensor.scalar_type());
  seen.gradient = tensor.requires_grad();
  seen.shape = seen.local_shape = tensor.sizes().vec();
  const PlacedTensorImpl* const impl = placed_impl(tensor);
  const Mark* const mark = impl == nullptr ? mark_of(tensor) : nullptr;
  const Layout* layout = mark == nullptr ? nullptr : mark->layout.get();
  if (mark != nullptr) {
    const auto global = mark->layout->global_sizes(tensor.sizes());
    seen.shape.assign(global.begin(), global.end());
  }
  if (impl != nullptr) {
    const Value& inside = impl->unfinished();
    seen.local_shape = inside.local.sizes().vec();
    layout = inside.layout.get();
    if (inside.partial) seen.partial = layout->group(inside.partial->axis)->name();
  }
  for (int axis = 0; layout != nullptr && axis < layout->axes(); ++axis) {
    const auto& [dim, cut] = (*layout)[axis];
    if (dim < 0) continue;
    ExplainedValue::Cut& own = seen.cuts.emplace_back();
    own.axis = layout->group(axis)->name();
    own.dim = dim;
    own.sizes.assign(cut->sizes().begin(), cut->sizes().end());
    if (cut->origin()) own.from = cut->origin()->parameter;
    own.stretches = 0;
    for (const Cut::Run& run : cut->runs()) own.stretches += run.repeat;
  }
  return seen;
}

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

bool in_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

int64_t now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace

/// What one run shows. Operators come from the thread that runs, what is counted from any.
class StepRecorder::Seen final : public GatherWatch {
 public:
  Seen(const ModelView& model, bool on_shapes) : on_shapes_(on_shapes) {
    for (const ParameterView& parameter : model.parameters()) {
      note(parameter.registered, parameter.path);
      note(parameter.in_use(), parameter.path);
    }
    for (const BufferView& buffer : model.buffers()) note(buffer.tensor, buffer.path);
  }

  void begin(std::shared_ptr<GatherWatch> inner) {
    inner_ = std::move(inner);
    explanation_ = {};
    module_.clear();
    values_.clear();
    made_.clear();
    held_.clear();
    // Nodes of a graph that was made in an earlier run have numbers before this one.
    first_ = now();
  }

  void before(const std::string& name, c10::ArrayRef<c10::IValue> inputs) {
    if (in_backward()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    ExplainedCall call;
    call.module = module_;
    call.of_module = false;
    call.operation = name;
    bool reached = false, weights_alone = true;
    for_each_tensor(inputs, [&](const at::Tensor& tensor) {
      const std::string* const parameter = parameter_of(tensor);
      const bool value = parameter == nullptr && values_.contains(tensor.unsafeGetTensorImpl());
      weights_alone &= parameter != nullptr;
      reached |= value || parameter != nullptr;
      call.operands.push_back(value_seen(tensor));
      if (parameter == nullptr) return;
      call.operands.back().name = *parameter;
      call.module = module_of(*parameter);
      call.of_module = true;
    });
    if (!reached) {
      open_.reset();
      return;
    }
    module_ = call.module;
    open_ = Open{weights_alone, call.of_module ? call.operands.front().name : ""};
    explanation_.calls.push_back(std::move(call));
    Asker asker = AskerScope::current();
    asker.call = first_ + static_cast<int64_t>(explanation_.calls.size());
    asker_.emplace(asker);
  }

  void after(c10::ArrayRef<c10::IValue> outputs) {
    if (!open_ || in_backward()) return;
    asker_.reset();
    const std::lock_guard<std::mutex> lock(mutex_);
    const Open open = *std::exchange(open_, std::nullopt);
    ExplainedCall& call = explanation_.calls.back();
    bool writes_parameters = false;
    for_each_tensor(outputs, [&](const at::Tensor& tensor) {
      writes_parameters |= parameter_of(tensor) != nullptr;
      call.results.push_back(value_seen(tensor));
      if (parameter_of(tensor) != nullptr) return;
      // The impl stays where it is, without its memory, so that no other takes its place.
      made_.emplace_back(tensor.getIntrusivePtr());
      if (on_shapes_) held_.push_back(tensor);
      if (open.weights_alone) {
        parameters_of_run_[tensor.unsafeGetTensorImpl()] = open.parameter;
      } else {
        values_.emplace(tensor.unsafeGetTensorImpl(), true);
      }
    });
    const bool silent = call.moves.empty() && call.gathers.empty();
    const bool shown = !open.weights_alone && !writes_parameters && !call.results.empty();
    call.operation = shown || !silent ? call.operation : "";  // dropped in the end: numbers stay
  }

  void counted(const std::string& group, const CountedCall& counted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Asker& asker = counted.asker;
    ExplainedMove move;
    move.group = group;
    move.collective = counted.operation;
    move.rule = asker.rule;
    move.backward = asker.backward || in_backward();
    move.elements = counted.traffic.elements;
    move.bytes = counted.traffic.bytes;
    const int64_t number = asker.call - first_;
    const bool known = number >= 1 && number <= static_cast<int64_t>(explanation_.calls.size());
    ExplainedCall* const call = known ? &explanation_.calls[number - 1] : nullptr;
    move.why = call != nullptr ? why_moved(counted, *call)
               : move.backward ? "in the backward pass: for gradients, or computed again"
                               : "not for an operator of the model's forward";
    (call == nullptr ? explanation_.outside : call->moves).push_back(std::move(move));
  }

  void about_to_gather(const UnplannedGather& gather) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (open_) explanation_.calls.back().gathers.push_back(gather.reason);
    }
    if (inner_) inner_->about_to_gather(gather);
  }
  void about_to_use(const std::string& parameter) override {
    if (inner_) inner_->about_to_use(parameter);
  }
  bool refuses() const override { return inner_ && inner_->refuses(); }

  Explanation take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Explanation taken = std::exchange(explanation_, {});
    std::erase_if(taken.calls, [&](ExplainedCall& call) {
      if (!call.operation.empty()) return false;
      // Backward moved something for it.
      for (ExplainedMove& move : call.moves) taken.outside.push_back(std::move(move));
      return true;
    });
    return taken;
  }

  void end() {
    asker_.reset();
    open_.reset();
    inner_ = nullptr;
    values_.clear();
    parameters_of_run_.clear();
    made_.clear();
    held_.clear();
  }

 private:
  struct Open {
    bool weights_alone = false;
    std::string parameter;
  };

  void note(const at::Tensor& tensor, const std::string& path) {
    if (tensor.defined()) parameters_.emplace(tensor.unsafeGetTensorImpl(), path);
  }
  const std::string* parameter_of(const at::Tensor& tensor) const {
    for (const auto* known : {&parameters_, &parameters_of_run_}) {
      const auto found = known->find(tensor.unsafeGetTensorImpl());
      if (found != known->end()) return &found->second;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::shared_ptr<GatherWatch> inner_;
  Explanation explanation_;
  std::unordered_map<const c10::TensorImpl*, std::string> parameters_, parameters_of_run_;
  std::unordered_map<const c10::TensorImpl*, bool> values_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> made_;
  std::vector<at::Tensor> held_;
  const bool on_shapes_;
  std::string module_;  ///< of the last parameter that was used
  std::optional<Open> open_;
  std::optional<AskerScope> asker_;
  int64_t first_ = 0;
};

StepRecorder::StepRecorder(const ModelView& model, std::vector<std::shared_ptr<Group>> groups,
                           std::shared_ptr<ModelContext> context, bool on_shapes)
    : seen_(std::make_shared<Seen>(model, on_shapes)),
      groups_(std::move(groups)),
      context_(std::move(context)) {}

StepRecorder::~StepRecorder() = default;

void StepRecorder::run(const std::function<void()>& step) {
  const auto inner = context_->gather_watch;
  seen_->begin(inner);
  context_->gather_watch = seen_;
  for (const auto& group : groups_) {
    group->ledger().set_watch([seen = seen_.get(), name = group->name()](const CountedCall& call) {
      seen->counted(name, call);
    });
  }
  const auto undo = c10::make_scope_exit([&] {
    for (const auto& group : groups_) group->ledger().set_watch(nullptr);
    context_->gather_watch = inner;
    seen_->end();
  });
  OperatorWatch watch(
      [&](const std::string& name, c10::ArrayRef<c10::IValue> inputs) {
        seen_->before(name, inputs);
      },
      [&](const std::string&, c10::ArrayRef<c10::IValue> outputs) { seen_->after(outputs); });
  step();
  watch.rethrow();
}

Explanation StepRecorder::take() {
  return seen_->take();
}

}  // namespace oslo
