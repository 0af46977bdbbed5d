#include "oslo_cpp/verify/verify.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

#include "mpu/grid/random_states.h"
#include "mpu/group/rank_check.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/model/initialized_tag.h"
#include "oslo_cpp/verify/recorded_run.h"
#include "oslo_cpp/verify/same_precision.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Gradients below this fraction of the model's largest are compared on its scale: many are zero
/// but for rounding (the bias of attention's keys).
constexpr double kSmallGradient = 1e-2;

/// How far to look for an operator that the two do not call at the same place.
constexpr size_t kWindow = 32;

void check_comparable(const torch::nn::Module& model, const torch::nn::Module& reference,
                      const ModelView& view, const ModelView& reference_view) {
  OSLO_CHECK(&model != &reference,
             "verify: the reference is the parallel model itself; hand it a second instance, made "
             "like the first one before initialize");
  OSLO_CHECK(!is_initialized(reference_view),
             "verify: the reference is parallel itself; make it as an ordinary model, and do not "
             "hand it to initialize");
  OSLO_CHECK(model.is_training() == reference.is_training(), "verify: the parallel model is in ",
             model.is_training() ? "training" : "evaluation",
             " mode and the reference is not; call ", model.is_training() ? "train()" : "eval()",
             " on both");
  const auto ours = view.in_use(), theirs = reference_view.in_use();
  for (size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const std::string a = i < ours.size() ? ours[i].name : "none";
    const std::string b = i < theirs.size() ? theirs[i].name : "none";
    OSLO_CHECK(a == b, "verify: parameter ", i, " of the parallel model is ", a,
               " and of the reference ", b, "; they are not the same model");
  }
  OSLO_CHECK(std::ranges::equal(view.buffers(), reference_view.buffers(), {}, &BufferView::path,
                                &BufferView::path),
             "verify: the two have different buffers; they are not the same model");
}

class Verifier {
 public:
  Verifier(const ParallelModel& parallel, torch::nn::Module& reference, const detail::RunModel& run,
           const VerifyOptions& options)
      : world_(parallel.mpu().world()),
        model_(*parallel.module()),
        reference_(reference),
        view_(model_),
        reference_view_(reference_),
        sharded_(parallel.mpu().random().sharded()),
        precision_(context_of(parallel.mpu().tensor_mesh())->precision),
        run_(run),
        options_(options) {}

  Verification verify() {
    const RuleScope scope("verify");
    const RandomStates keeper(std::vector<at::Generator>{sharded_});
    agree_on_success(world_, "verify",
                     [&] { check_comparable(model_, reference_, view_, reference_view_); });
    compare_weights();
    RecordedRun expected;
    agree_on_success(world_, "verify: the reference", [&] {
      expected = run_recorded(
          reference_, run_as_with(precision_, device(), run_), options_.gradients,
          [&](RecordedOperation operation) {
            for (at::Tensor& result : operation.results) result = result.clone();
            expected_.push_back(std::move(operation));
          },
          &noise_);
    });
    const RankCheckScope compared;
    const RecordedRun actual =
        run_recorded(model_, run_, options_.gradients,
                     [&](const RecordedOperation& operation) { compare_operation(operation); });
    unmatched_ += static_cast<int64_t>(expected_.size() - next_);
    result_.set_unmatched_operators(unmatched_);
    compare_outputs(actual.outputs, expected);
    compare_named(Comparison::Of::buffer, actual.buffers, expected.buffers);
    compare_gradients(actual.gradients, expected.gradients);
    agree_on_first_difference();
    return std::move(result_);
  }

 private:
  at::DeviceType device() const {
    const auto parameters = reference_view_.in_use();
    return parameters.empty() ? at::kCPU : parameters.front().tensor.device().type();
  }

  double tolerance(Comparison::Of of) const {
    if (options_.tolerance > 0 || of == Comparison::Of::weight) return options_.tolerance;
    return tolerance_under(precision_);
  }

  void add(Comparison::Of of, const std::string& name, const std::string& layer, size_t index,
           const at::Tensor& actual, const at::Tensor& expected, double least_scale = 0,
           double noise = 0) {
    Comparison comparison{of, name, layer, static_cast<int64_t>(index), 0, 0, ""};
    compare(comparison, actual, expected, tolerance(of), least_scale, noise);
    result_.add(std::move(comparison));
  }

  void compare_weights() {
    const auto ours = view_.in_use(), theirs = reference_view_.in_use();
    for (size_t i = 0; i < ours.size(); ++i) {
      const at::Tensor one = theirs[i].tensor.detach();
      add(Comparison::Of::weight, ours[i].name, "", i,
          as_rounded(detached_whole(ours[i].tensor), one), one);
    }
  }

  /// Gathering has been done by now, so that ranks may find different things here.
  void compare_operation(const RecordedOperation& actual) {
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
    RecordedOperation& expected = expected_[at];
    const size_t results = std::min(actual.results.size(), expected.results.size());
    for (size_t i = 0; i < results; ++i) {
      add(Comparison::Of::operation, actual.name, actual.layer, at, actual.results[i],
          expected.results[i], 0, expected.noise);
    }
    expected.results.clear();
  }

  void compare_outputs(const Tensors& actual, const RecordedRun& expected) {
    OSLO_CHECK(actual.size() == expected.outputs.size(), "verify: the parallel model returned ",
               actual.size(), " tensors and the reference ", expected.outputs.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      add(Comparison::Of::output, "", "", i, actual[i], expected.outputs[i].detach(), 0,
          expected.output_noise[i]);
    }
  }

  void compare_named(Comparison::Of of, const NamedValues& actual, const NamedValues& expected) {
    for (size_t i = 0; i < std::min(actual.values.size(), expected.values.size()); ++i) {
      add(of, actual.names[i], "", i, actual.values[i], expected.values[i], 0, expected.noise[i]);
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
        add(Comparison::Of::gradient, actual.names[i], "", i, as_rounded(a, b), b,
            kSmallGradient * largest);
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
    const std::string agreed = world_.decide("verify", told, [&](const auto& told_by) {
      std::string first;
      size_t earliest = all.size();
      for (size_t rank = 0; rank < told_by.size(); ++rank) {
        if (told_by[rank].empty()) continue;
        const size_t position = std::stoull(told_by[rank]);
        if (!first.empty() && position >= earliest) continue;
        earliest = position;
        first = told_by[rank].substr(told_by[rank].find(' ') + 1);
        if (world_.size() > 1) first += c10::str(" (rank ", rank, ")");
      }
      return first;
    });
    if (!agreed.empty()) result_.set_first_difference(agreed);
  }

  const World world_;
  torch::nn::Module& model_;
  torch::nn::Module& reference_;
  const ModelView view_, reference_view_;
  const at::Generator sharded_;  ///< of cut values with RandomMode::per_rank
  const Precision precision_;
  const detail::RunModel& run_;
  const VerifyOptions& options_;
  std::vector<RecordedOperation> expected_;
  RoundingNoise noise_;  ///< of the reference
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
