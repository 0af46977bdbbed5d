#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/catalogue_amp.h"
#include "tests/support/own_draws.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/recomputed_training.h"

// What one device computes, and how near others have to come.
namespace catalogue {

constexpr int kRecomputedSteps = 5;

/// AdamW would turn the last bits of gradients near zero into steps of full length.
inline std::unique_ptr<torch::optim::Optimizer> recomputed_optimizer(const Entry& entry,
                                                                     const RecomputedCase& how,
                                                                     const Tensors& parameters) {
  if (how.grid.size() == 1) return make_optimizer(entry, parameters);
  // At a higher rate the loss of the exported convolutions jumps, which enlarges roundings.
  const double rate = entry.name == "conv" ? 1e-4 : 1e-2;
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(rate).momentum(0.9));
}

using Named = std::map<std::string, torch::Tensor>;

/// What one device computes, the batch in parts, one after the other.
struct OneDeviceRun {
  std::vector<std::vector<Tensors>> outputs;  ///< of each step's parts
  std::vector<std::vector<torch::Tensor>> losses;
  std::vector<Named> gradients;
  Named before, weights, buffers;
  std::vector<Batch> batches;  ///< drawn before ranks, who share LibTorch's generator
};

/// In `type`, under a guard of autocast in `guarded`.
inline OneDeviceRun run_one_device(const Entry& entry, const RecomputedCase& how, torch::Dtype type,
                                   std::optional<torch::Dtype> guarded) {
  OneDeviceRun run;
  const auto model = make_model(entry, type);
  const auto optimizer = recomputed_optimizer(entry, how, model->parameters());
  const auto parameters = model->named_parameters();
  for (const auto& item : parameters) run.before[item.key()] = item.value().detach().clone();
  const oslo::test::OwnDraws draws(5);
  for (int number = 0; number < kRecomputedSteps; ++number) {
    const Batch& batch = run.batches.emplace_back(make_batch(entry, number, type));
    Tensors whole = batch.inputs;
    whole.push_back(batch.target);
    optimizer->zero_grad();
    run.outputs.emplace_back();
    run.losses.emplace_back();
    for (const Tensors& part : pipeline_parity::divided(whole, how.parts())) {
      const Batch own{Tensors(part.begin(), part.end() - 1), part.back()};
      torch::Tensor loss;
      {
        std::optional<oslo::test::UnderAutocast> guard;
        if (guarded) guard.emplace(*guarded);
        run.outputs.back().push_back(entry.forward(*model, own.inputs));
        loss = entry.loss(run.outputs.back().back(), own);
      }
      run.losses.back().push_back(loss.detach());
      (how.parts() == 1 ? loss : loss / double(how.parts())).backward();
    }
    Named& gradients = run.gradients.emplace_back();
    for (const auto& item : parameters) {
      const torch::Tensor& gradient = item.value().grad();
      gradients[item.key()] = gradient.defined() ? gradient.clone() : torch::Tensor();
    }
    optimizer->step();
  }
  for (const auto& item : parameters) run.weights[item.key()] = item.value().detach();
  for (const auto& item : model->named_buffers()) run.buffers[item.key()] = item.value();
  return run;
}

/// Whether a rounding may turn which expert a token goes to, when a model halts, whether a ReLU
/// behind a sum of small numbers is on, which of the two numbers that a group norm sees is the
/// larger, or what else it decides; or a loss takes the logarithm of small magnitudes. One device's
/// run tells little of such a model over ranks.
inline bool may_decide(const Entry& entry) {
  return entry.decides || entry.name == "mixture_of_experts" || entry.name == "adaptive" ||
         entry.name == "wavenet" || entry.name == "vocoder" || entry.name == "conv";
}

/// Compares with one device's: `plain`, and `exact` in a wider type, which shows what its roundings
/// come to. Those of n ranks are 2n - 1 in place of one (tests/support/bf16.h).
class RecomputedResults {
 public:
  RecomputedResults(const Entry& entry, const RecomputedCase& how)
      : entry_(entry),
        how_(how),
        plain(run_one_device(
            entry, how, torch::kFloat,
            how.type == torch::kFloat ? std::optional<torch::Dtype>() : std::optional(how.type))) {
    if (how.grid.size() == 1) return;
    const torch::Dtype wider = how.type == torch::kFloat ? torch::kDouble : torch::kFloat;
    exact = run_one_device(entry, how, wider, std::nullopt);
  }

  /// `actual`: all of it, an ordinary tensor. `all`: what it is a part of, whose norm says how much
  /// a rounding may be.
  void compare(const std::string& what, const torch::Tensor& actual, const torch::Tensor& one,
               const torch::Tensor& wide, double all) const {
    ASSERT_EQ(actual.scalar_type(), one.scalar_type()) << what;
    ASSERT_EQ(actual.sizes(), one.sizes()) << what;
    const auto apart = [](const torch::Tensor& a, const torch::Tensor& b) {
      return (a.detach().to(torch::kDouble) - b.detach().to(torch::kDouble)).norm().item<double>();
    };
    if (how_.grid.size() == 1 && !casts_within(entry_)) {
      const bool equal = actual.detach().equal(one.detach());
      EXPECT_TRUE(equal) << what << " differs by " << apart(actual, one);
      return;
    }
    if (how_.grid.size() == 1) {
      EXPECT_LE(apart(actual, one), one.detach().norm().item<double>() / 32 + all / 128) << what;
      return;
    }
    const double unit = how_.type == torch::kFloat ? 1e-6 : how_.type == torch::kHalf ? 1e-3 : 8e-3;
    double jump = 0;
    if (may_decide(entry_)) jump = how_.type == torch::kFloat ? 1e-3 : 0.25;
    if (entry_.name == "vocoder") jump = 0.25;
    EXPECT_LE(apart(actual, one),
              3 * std::sqrt(2.0 * how_.grid.size()) * apart(one, wide) + (unit + jump) * all)
        << what;
  }

  static double norm_of(const Named& all) {
    double squares = 0;
    for (const auto& [name, tensor] : all) {
      if (tensor.defined()) squares += std::pow(tensor.norm().item<double>(), 2);
    }
    return std::sqrt(squares);
  }

  const torch::Tensor& wide_of(const Named& named, const Named& of_plain,
                               const std::string& name) const {
    return how_.grid.size() == 1 ? of_plain.at(name) : named.at(name);
  }

 private:
  const Entry& entry_;
  const RecomputedCase& how_;

 public:
  const OneDeviceRun plain;
  OneDeviceRun exact;
};

}  // namespace catalogue
