#include "oslo_cpp/verify.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <map>
#include <string>
#include <utility>

#include "oslo_cpp/agreement.h"
#include "oslo_cpp/initialized_tag.h"
#include "oslo_cpp/operator_watch.h"
#include "parallelizers/data/module_parameters.h"
#include "parallelizers/placement/access.h"
#include "parallelizers/plan/example_run.h"

namespace oslo {
namespace {

/// Gradients below this fraction of the model's largest are compared on its scale: many are zero
/// but for rounding (the bias of attention's keys).
constexpr double kSmallGradient = 1e-2;

/// How far to look for an operator that the two do not call at the same place.
constexpr size_t kWindow = 32;

using Tensors = std::vector<at::Tensor>;

at::Tensor whole(const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  return full_tensor(tensor.detach());
}

void collect_values(const c10::IValue& value, Tensors& values) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) values.push_back(whole(value.toTensor()));
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) collect_values(element, values);
  } else if (value.isScalar()) {
    values.push_back(at::scalar_tensor(value.toScalar(), at::kDouble));
  }
}

/// Memory that no operator has written yet.
bool unwritten(const std::string& name) {
  return name.find("::empty") != std::string::npos ||
         name.find("::new_empty") != std::string::npos ||
         name.find("::resize_") != std::string::npos;
}

/// One operator that a model's own code called.
struct Operation {
  std::string name;
  std::string layer;
  Tensors results;

  bool like(const Operation& other) const {
    if (name != other.name || results.size() != other.results.size()) return false;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].sizes() != other.results[i].sizes()) return false;
    }
    return true;
  }
};

/// Runs a model and hands over every operation of its forward, in order.
Tensors watched(torch::nn::Module& model, const detail::RunModel& run,
                const std::function<void(Operation)>& seen) {
  std::map<const c10::TensorImpl*, std::string> layer_of;
  for (const NamedTensor& parameter : parameters_in_use(model)) {
    const size_t dot = parameter.name.rfind('.');
    layer_of[parameter.tensor.unsafeGetTensorImpl()] =
        dot == std::string::npos ? parameter.name : parameter.name.substr(0, dot);
  }
  std::string layer;
  const auto look = [&](const c10::IValue& input) {
    if (!input.isTensor()) return;
    const auto found = layer_of.find(input.toTensor().unsafeGetTensorImpl());
    if (found != layer_of.end()) layer = found->second;
  };
  OperatorWatch watch(
      [&](const std::string&, c10::ArrayRef<c10::IValue> inputs) {
        for (const c10::IValue& input : inputs) {
          if (input.isTensorList()) {
            for (const at::Tensor& each : input.toTensorVector()) look(each);
          } else {
            look(input);
          }
        }
      },
      [&](const std::string& name, c10::ArrayRef<c10::IValue> outputs) {
        if (unwritten(name)) return;
        Operation operation{name, layer, {}};
        for (const c10::IValue& output : outputs) collect_values(output, operation.results);
        seen(std::move(operation));
      });
  Tensors outputs = run(model);
  watch.rethrow();
  return outputs;
}

/// Takes a model's gradients away and gives them back.
class GradientKeeper {
 public:
  explicit GradientKeeper(const torch::nn::Module& model) : parameters_(parameters_in_use(model)) {
    for (NamedTensor& parameter : parameters_) {
      kept_.push_back(parameter.tensor.grad());
      parameter.tensor.mutable_grad().reset();
    }
  }
  ~GradientKeeper() {
    for (size_t i = 0; i < kept_.size(); ++i) parameters_[i].tensor.mutable_grad() = kept_[i];
  }
  GradientKeeper(const GradientKeeper&) = delete;
  GradientKeeper& operator=(const GradientKeeper&) = delete;

  const std::vector<NamedTensor>& parameters() const { return parameters_; }

 private:
  std::vector<NamedTensor> parameters_;
  Tensors kept_;
};

/// Puts a generator's state back.
class GeneratorKeeper {
 public:
  explicit GeneratorKeeper(at::Generator generator)
      : generator_(std::move(generator)), state_(generator_.get_state()) {}
  ~GeneratorKeeper() { generator_.set_state(state_); }
  GeneratorKeeper(const GeneratorKeeper&) = delete;
  GeneratorKeeper& operator=(const GeneratorKeeper&) = delete;

 private:
  at::Generator generator_;
  const at::Tensor state_;
};

/// Gradients of the outputs' sum under weights that are the same in both runs and alike nowhere.
void run_backward(const Tensors& outputs) {
  Tensors starts, weights;
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    at::Tensor all = full_tensor(output);
    if (all.is_complex()) all = at::view_as_real(all.resolve_conj());
    const at::Tensor weight = at::arange(all.numel(), all.options().dtype(at::kDouble)).cos();
    starts.push_back((all * weight.view(all.sizes()).to(all.dtype())).sum());
  }
  for (size_t i = 1; i < starts.size(); ++i)
    starts[0] = starts[0] + starts[i].to(starts[0].dtype());
  if (!starts.empty()) starts[0].backward();
}

struct NamedValues {
  std::vector<std::string> names;
  Tensors values;  ///< whole; undefined: no gradient
};

/// What a model came to.
struct Outcome {
  Tensors outputs;
  NamedValues buffers;
  NamedValues gradients;
};

Outcome run_whole(torch::nn::Module& model, const detail::RunModel& run, bool gradients,
                  const std::function<void(Operation)>& seen) {
  Outcome outcome;
  const GradientKeeper keeper(model);
  run_example(model, [&] {
    const c10::AutoGradMode with_gradients(gradients);
    const Tensors outputs = watched(model, run, seen);
    for (const auto& buffer : model.named_buffers()) {
      outcome.buffers.names.push_back(buffer.key());
      outcome.buffers.values.push_back(whole(buffer.value()).clone());
    }
    if (gradients) run_backward(outputs);
    for (const at::Tensor& output : outputs) outcome.outputs.push_back(whole(output));
  });
  if (!gradients) return outcome;
  for (const NamedTensor& parameter : keeper.parameters()) {
    const at::Tensor& gradient = parameter.tensor.grad();
    outcome.gradients.names.push_back(parameter.name);
    outcome.gradients.values.push_back(gradient.defined() ? whole(gradient) : gradient);
  }
  return outcome;
}

void check_comparable(const torch::nn::Module& model, const torch::nn::Module& reference) {
  OSLO_CHECK(&model != &reference,
             "verify: the reference is the parallel model itself; hand it a second instance, made "
             "like the first one before initialize");
  OSLO_CHECK(!is_initialized(reference),
             "verify: the reference is parallel itself; make it as an ordinary model, and do not "
             "hand it to initialize");
  OSLO_CHECK(model.is_training() == reference.is_training(), "verify: the parallel model is in ",
             model.is_training() ? "training" : "evaluation",
             " mode and the reference is not; call ", model.is_training() ? "train()" : "eval()",
             " on both");
  const auto ours = parameters_in_use(model), theirs = parameters_in_use(reference);
  for (size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const std::string a = i < ours.size() ? ours[i].name : "none";
    const std::string b = i < theirs.size() ? theirs[i].name : "none";
    OSLO_CHECK(a == b, "verify: parameter ", i, " of the parallel model is ", a,
               " and of the reference ", b, "; they are not the same model");
  }
  const auto buffers = model.named_buffers(), reference_buffers = reference.named_buffers();
  OSLO_CHECK(buffers.keys() == reference_buffers.keys(),
             "verify: the two have different buffers; they are not the same model");
}

class Verifier {
 public:
  Verifier(const ParallelModel& parallel, torch::nn::Module& reference, const detail::RunModel& run,
           const VerifyOptions& options)
      : world_(parallel.mpu().world()),
        model_(*parallel.module()),
        reference_(reference),
        sharded_(parallel.mpu().random().sharded()),
        run_(run),
        options_(options) {}

  Verification verify() {
    const RuleScope scope("verify");
    const GeneratorKeeper keeper(sharded_);
    agree_on_success(world_, "verify", [&] { check_comparable(model_, reference_); });
    compare_weights();
    Outcome expected;
    agree_on_success(world_, "verify: the reference", [&] {
      expected = run_whole(reference_, run_, options_.gradients, [&](Operation operation) {
        for (at::Tensor& result : operation.results) result = result.clone();
        expected_.push_back(std::move(operation));
      });
    });
    const Outcome actual =
        run_whole(model_, run_, options_.gradients,
                  [&](const Operation& operation) { compare_operation(operation); });
    unmatched_ += static_cast<int64_t>(expected_.size() - next_);
    result_.set_unmatched_operators(unmatched_);
    compare_outputs(actual.outputs, expected.outputs);
    compare_named(Comparison::Of::buffer, actual.buffers, expected.buffers);
    compare_gradients(actual.gradients, expected.gradients);
    agree_on_first_difference();
    return std::move(result_);
  }

 private:
  void add(Comparison::Of of, const std::string& name, const std::string& layer, size_t index,
           const at::Tensor& actual, const at::Tensor& expected, double least_scale = 0) {
    Comparison comparison{of, name, layer, static_cast<int64_t>(index), 0, 0, ""};
    compare(comparison, actual, expected, options_.tolerance, least_scale);
    result_.add(std::move(comparison));
  }

  void compare_weights() {
    const auto ours = parameters_in_use(model_), theirs = parameters_in_use(reference_);
    for (size_t i = 0; i < ours.size(); ++i) {
      add(Comparison::Of::weight, ours[i].name, "", i, whole(ours[i].tensor),
          theirs[i].tensor.detach());
    }
  }

  /// Gathering has been done by now, so that ranks may find different things here.
  void compare_operation(const Operation& actual) {
    size_t at = next_;
    if (at < expected_.size() && expected_[at].name != actual.name) {
      const size_t end = std::min(expected_.size(), next_ + kWindow);
      while (at < end && !expected_[at].like(actual)) ++at;
      if (at == end) {
        ++unmatched_;
        return;
      }
    }
    if (at >= expected_.size()) {
      ++unmatched_;
      return;
    }
    unmatched_ += static_cast<int64_t>(at - next_);
    next_ = at + 1;
    Operation& expected = expected_[at];
    const size_t results = std::min(actual.results.size(), expected.results.size());
    for (size_t i = 0; i < results; ++i) {
      add(Comparison::Of::operation, actual.name, actual.layer, at, actual.results[i],
          expected.results[i]);
    }
    expected.results.clear();
  }

  void compare_outputs(const Tensors& actual, const Tensors& expected) {
    OSLO_CHECK(actual.size() == expected.size(), "verify: the parallel model returned ",
               actual.size(), " tensors and the reference ", expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      add(Comparison::Of::output, "", "", i, actual[i], expected[i].detach());
    }
  }

  void compare_named(Comparison::Of of, const NamedValues& actual, const NamedValues& expected) {
    for (size_t i = 0; i < std::min(actual.values.size(), expected.values.size()); ++i) {
      add(of, actual.names[i], "", i, actual.values[i], expected.values[i]);
    }
  }

  void compare_gradients(const NamedValues& actual, const NamedValues& expected) {
    double largest = 0;
    for (const at::Tensor& gradient : expected.values) {
      if (!gradient.defined() || gradient.numel() == 0) continue;
      largest = std::max(largest, gradient.abs().max().item().toDouble());
    }
    for (size_t i = actual.values.size(); i-- > 0;) {
      const at::Tensor &a = actual.values[i], &b = expected.values[i];
      if (!a.defined() && !b.defined()) continue;
      if (a.defined() && b.defined()) {
        add(Comparison::Of::gradient, actual.names[i], "", i, a, b, kSmallGradient * largest);
        continue;
      }
      result_.add({Comparison::Of::gradient, actual.names[i], "", static_cast<int64_t>(i), 0, 0,
                   a.defined() ? "the reference has none" : "missing"});
    }
  }

  /// Ranks compare for themselves; the answer is the earliest difference on any.
  void agree_on_first_difference() {
    const Comparison* own = result_.own_first_difference();
    const auto& all = result_.comparisons();
    const std::string told =
        own == nullptr ? "" : c10::str(own - all.data(), " ", own->to_string());
    size_t earliest = all.size();
    const std::vector<std::string> told_by = world_.exchange("verify", told);
    for (size_t rank = 0; rank < told_by.size(); ++rank) {
      if (told_by[rank].empty()) continue;
      const size_t position = std::stoull(told_by[rank]);
      if (result_.first_difference() && position >= earliest) continue;
      earliest = position;
      std::string text = told_by[rank].substr(told_by[rank].find(' ') + 1);
      if (world_.size() > 1) text += c10::str(" (rank ", rank, ")");
      result_.set_first_difference(std::move(text));
    }
  }

  const World world_;
  torch::nn::Module& model_;
  torch::nn::Module& reference_;
  const at::Generator sharded_;  ///< of cut values with RandomMode::per_rank
  const detail::RunModel& run_;
  const VerifyOptions& options_;
  std::vector<Operation> expected_;
  size_t next_ = 0;
  int64_t unmatched_ = 0;
  Verification result_;
};

}  // namespace

Verification detail::verify_modules(const ParallelModel& parallel,
                                    const std::shared_ptr<torch::nn::Module>& reference,
                                    const RunModel& run, const VerifyOptions& options) {
  OSLO_CHECK(reference, "verify: the reference is null");
  return Verifier(parallel, *reference, run, options).verify();
}

}  // namespace oslo
