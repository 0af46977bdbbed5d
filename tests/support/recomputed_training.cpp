#include "tests/support/recomputed_training.h"

#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/nn/module.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "parallelizers/memory/recompute/layer_segments.h"
#include "parallelizers/stages/model_layers.h"
#include "tests/support/catalogue_amp.h"
#include "tests/support/own_draws.h"
#include "tests/support/recomputed_reference.h"
#include "tests/support/spread.h"

namespace catalogue {
namespace {

/// The key's value. "modules": every second layer that has parameters.
std::string activation_checkpoint(const RecomputedCase& how,
                                  const std::shared_ptr<torch::nn::Module>& model) {
  if (how.form == "none") return R"({"enabled": false})";
  if (how.form == "every") return R"({"enabled": true, "every": 2})";
  if (how.form == "keep") {
    return R"({"enabled": true, "keep": ["matmul", "convolution", "attention"]})";
  }
  if (how.form == "whole") return R"({"enabled": true})";
  std::string modules;
  bool next = true;
  for (const std::string& path : oslo::pipeline_layers(oslo::ModelView(model))) {
    bool has_parameters = false;
    for (const auto& item : model->named_parameters()) {
      has_parameters |= oslo::lies_in(item.key(), path);
    }
    if (has_parameters && next) modules += (modules.empty() ? "\"" : ", \"") + path + "\"";
    if (has_parameters) next = !next;
  }
  return R"({"enabled": true, "modules": [)" + modules + "]}";
}

std::string recomputed_config(const RecomputedCase& how,
                              const std::shared_ptr<torch::nn::Module>& model) {
  std::string config =
      how.grid.pipeline > 1
          ? spread(*model, how.grid)
          : c10::str(R"({"model_parallelism": {"tensor_parallel_size": )", how.grid.tensor, "}}");
  config.pop_back();
  config += R"(, "activation_checkpoint": )" + activation_checkpoint(how, model);
  if (how.type != torch::kFloat) {
    config += c10::str(R"(, "amp": {"enabled": true, "dtype": ")",
                       how.type == torch::kHalf ? "float16" : "bfloat16", "\"}");
  }
  return config + "}";
}

/// One rank's run.
class RecomputedRun {
 public:
  RecomputedRun(const Entry& entry, const RecomputedCase& how, const RecomputedResults& expected,
                const oslo::World& world)
      : entry_(entry), how_(how), expected_(expected) {
    model_ = make_model(entry, torch::kFloat);
    optimizer_ = recomputed_optimizer(entry, how, model_->parameters());
    oslo::InitializeOptions options;
    options.world = world;
    options.cut_own_parameters = true;
    const Batch& first = expected.plain.batches.front();
    options.example_inputs = [&] { entry.forward(*model_, first.inputs); };
    parallel_.emplace(
        oslo::initialize(model_, oslo::Config::parse(recomputed_config(how, model_)), options));
    if (how.grid.data > 1) {
      ddp_.emplace(std::make_shared<ForwardOf>(entry, model_),
                   parallel_->mpu().get_data_parallel_group());
    }
    if (how.grid.pipeline > 1) {
      schedule_.emplace(*parallel_, oslo::PipelineOptions().num_microbatches(how.micro_batches()));
    }
  }

  /// Returns this rank's parts of the weights.
  Tensors train() {
    const oslo::test::OwnDraws draws(5);
    for (int number = 0; number < kRecomputedSteps; ++number) {
      optimizer_->zero_grad();
      SCOPED_TRACE("step " + std::to_string(number));
      const Batch& batch = expected_.plain.batches[number];
      Tensors whole = batch.inputs;
      whole.push_back(batch.target);
      const int replica = parallel_->mpu().get_data_parallel_rank();
      const Tensors own = pipeline_parity::divided(whole, how_.grid.data)[replica];
      const torch::Tensor loss =
          schedule_ ? scheduled(own) : forward_backward(own, number, replica);
      double of_one = 0;
      for (int i = 0; i < how_.micro_batches(); ++i) {
        of_one += expected_.plain.losses[number][replica * how_.micro_batches() + i].item<double>();
      }
      of_one /= how_.micro_batches();
      EXPECT_NEAR(
          loss.item<double>(), of_one,
          (how_.type == torch::kFloat && !may_decide(entry_) ? 1e-4 : 0.05) * std::abs(of_one) +
              1e-4);
      compare_gradients(number);
      if (testing::Test::HasFailure()) return {};
      optimizer_->step();
    }
    compare_state();
    if (how_.form != "none") expect_recomputed();
    Tensors weights;
    for (const torch::Tensor& parameter : model_->parameters()) {
      if (oslo::is_here(parameter)) weights.push_back(oslo::local_tensor(parameter.detach()));
    }
    return weights;
  }

 private:
  static torch::Tensor whole_here(const torch::Tensor& tensor) {
    return pipeline_parity::whole_here(tensor);
  }

  torch::Tensor scheduled(const Tensors& own) {
    return schedule_
        ->forward_backward_step(
            own,
            [&](const Tensors& micro) {
              const Batch part{Tensors(micro.begin(), micro.end() - 1), micro.back()};
              return entry_.loss(entry_.forward(*model_, part.inputs), part);
            })
        .loss;
  }

  torch::Tensor forward_backward(const Tensors& own, int number, int replica) {
    const Batch part{Tensors(own.begin(), own.end() - 1), own.back()};
    const Tensors outputs =
        ddp_ ? ddp_->forward(part.inputs) : entry_.forward(*model_, part.inputs);
    const torch::Tensor loss = entry_.loss(outputs, part);
    loss.backward();
    const Tensors& of_plain = expected_.plain.outputs[number][replica];
    EXPECT_EQ(outputs.size(), of_plain.size());
    for (size_t i = 0; i < of_plain.size(); ++i) {
      const torch::Tensor& wide =
          how_.grid.size() == 1 ? of_plain[i] : expected_.exact.outputs[number][replica][i];
      expected_.compare("output " + std::to_string(i), oslo::full_tensor(outputs[i]), of_plain[i],
                        wide, wide.detach().norm().item<double>());
    }
    return oslo::full_tensor(loss.detach());
  }

  void compare_gradients(int number) {
    const Named& one = expected_.plain.gradients[number];
    const Named& wide = how_.grid.size() == 1 ? one : expected_.exact.gradients[number];
    const double all = RecomputedResults::norm_of(wide);
    for (const auto& item : model_->named_parameters()) {
      if (!oslo::is_here(item.value())) continue;
      const torch::Tensor& gradient = item.value().grad();
      const torch::Tensor& expected = one.at(item.key());
      if (!expected.defined()) {
        const bool zero = !gradient.defined() || !whole_here(gradient).any().item<bool>();
        EXPECT_TRUE(zero) << item.key();
        continue;
      }
      ASSERT_TRUE(gradient.defined()) << item.key();
      expected_.compare("gradient of " + item.key(), whole_here(gradient), expected,
                        wide.at(item.key()), all);
    }
  }

  void compare_state() {
    const bool alone = how_.grid.size() == 1;
    const OneDeviceRun &one = expected_.plain, &wide = alone ? one : expected_.exact;
    Named learned;
    for (const auto& [name, weight] : wide.weights) learned[name] = weight - wide.before.at(name);
    const double all = RecomputedResults::norm_of(learned);
    for (const auto& item : model_->named_parameters()) {
      if (!oslo::is_here(item.value())) continue;
      const torch::Tensor weight = whole_here(item.value());
      if (alone) {
        expected_.compare("weight " + item.key(), weight, one.weights.at(item.key()), weight, all);
        continue;
      }
      const torch::Tensor& first = one.before.at(item.key());
      expected_.compare("what was learned of " + item.key(), weight - first,
                        one.weights.at(item.key()) - first, learned.at(item.key()), all);
    }
    if (!alone) return;
    for (const auto& item : model_->named_buffers()) {
      const torch::Tensor& expected = one.buffers.at(item.key());
      expected_.compare("buffer " + item.key(), oslo::full_tensor(item.value()), expected, expected,
                        0);
    }
  }

  /// What is kept after all has a reason that the documentation names.
  void expect_recomputed() {
    const auto context = oslo::context_of(parallel_->mpu().tensor_mesh());
    const auto& segments = dynamic_cast<const oslo::LayerSegments&>(*context->observer);
    const bool has_reason = entry_.name == "own_functions" || entry_.name == "in_place_views" ||
                            (entry_.name == "adaptive" && how_.grid.pipeline > 1);
    int again = 0;
    for (const oslo::SegmentReport& each : segments.report()) {
      again += each.used && (each.not_cut.empty() || has_reason);
      if (each.not_cut.empty()) continue;
      EXPECT_TRUE(has_reason) << each.name << ": " << each.not_cut;
      EXPECT_THAT(each.not_cut, testing::AnyOf(testing::HasSubstr("autograd::Function"),
                                               testing::HasSubstr("writes one of its inputs"),
                                               testing::HasSubstr("without an operator")));
    }
    EXPECT_GT(again, 0);
  }

  const Entry& entry_;
  const RecomputedCase& how_;
  const RecomputedResults& expected_;
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<oslo::ParallelModel> parallel_;
  std::optional<oslo::DistributedDataParallel<ForwardOf>> ddp_;
  std::optional<oslo::PipelineSchedule> schedule_;
};

}  // namespace

void expect_recomputed(const Entry& entry, RecomputedCase how) {
  if (std::getenv("OSLO_TEST_KEEPS_ALL") != nullptr) how.form = "none";
  if (!entry.runs_in_bf16) how.type = torch::kFloat;
  if (how.type == torch::kHalf && !runs_in_fp16(entry)) how.type = torch::kBFloat16;
  at::set_num_threads(1);
  const RecomputedResults expected(entry, how);
  const auto trained = [&](const RecomputedCase& as) {
    std::vector<Tensors> weights(how.grid.size());
    oslo::run_as_threads(how.grid.size(), [&](const oslo::World& world) {
      at::set_num_threads(1);
      weights[world.rank()] = RecomputedRun(entry, as, expected, world).train();
    });
    return weights;
  };
  const auto weights = trained(how);
  const bool casts = how.type != torch::kFloat && casts_within(entry);
  if (!casts && !may_decide(entry)) return;
  RecomputedCase without = how;
  without.form = "none";
  const auto same = trained(without);
  for (size_t rank = 0; rank < same.size(); ++rank) {
    ASSERT_EQ(weights[rank].size(), same[rank].size());
    for (size_t i = 0; i < same[rank].size(); ++i) {
      EXPECT_TRUE(weights[rank][i].equal(same[rank][i])) << i;
    }
  }
}

}  // namespace catalogue
