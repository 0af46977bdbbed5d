#pragma once

#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <atomic>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/error_of.h"
#include "tests/support/seeded.h"
#include "tests/support/temporary_directory.h"

#define EXPECT_SAYS(text, words) \
  EXPECT_NE((text).find(words), std::string::npos) << "the message was: " << (text)

namespace oslo::resume_test {

using test::error_of;
using test::TemporaryDirectory;
using torch::Tensor;

constexpr int64_t kWords = 11, kWidth = 6, kBatch = 4, kLength = 5;

/// Plain LibTorch; nothing divides by the number of ranks. The head is tied to the table, and
/// `frozen` is a parameter that is never stepped.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(double dropout = 0) {
    table = register_module("table", torch::nn::Embedding(kWords, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 2 * kWidth + 1));
    down = register_module("down", torch::nn::Linear(2 * kWidth + 1, kWidth));
    drop = register_module("drop", torch::nn::Dropout(dropout));
    head = register_module("head",
                           torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWords).bias(false)));
    head->weight = table->weight;
    frozen = register_parameter("frozen", torch::randn({3}), /*requires_grad=*/false);
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& tokens) {
    const Tensor x = table->forward(tokens);
    return head->forward(x + drop->forward(down->forward(torch::tanh(up->forward(x)))));
  }

  torch::nn::Embedding table{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr}, head{nullptr};
  torch::nn::Dropout drop{nullptr};
  Tensor frozen;
};
TORCH_MODULE(Net);

enum class Kind { sgd, adam, adamw, adagrad, rmsprop };
constexpr Kind kKinds[] = {Kind::sgd, Kind::adam, Kind::adamw, Kind::adagrad, Kind::rmsprop};
constexpr double kRate = 1e-2;

/// Two groups: what has two dimensions, and the rest at a tenth of the learning rate.
inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(Kind kind, Net& model,
                                                               double rate = kRate) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  std::vector<Tensor> matrices, others;
  for (const Tensor& p : model->parameters()) (p.dim() == 2 ? matrices : others).push_back(p);
  const auto with = [&](auto options, auto* optimizer) -> std::unique_ptr<Optimizer> {
    using Class = std::remove_pointer_t<decltype(optimizer)>;
    using Options = decltype(options);
    auto slow = std::make_unique<Options>(options);
    slow->lr(rate / 10);
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(matrices, std::make_unique<Options>(options));
    groups.emplace_back(others, std::move(slow));
    return std::make_unique<Class>(groups, options);
  };
  switch (kind) {
    case Kind::sgd:
      return with(SGDOptions(rate).momentum(0.9).nesterov(true), (SGD*)nullptr);
    case Kind::adam:
      return with(AdamOptions(rate).amsgrad(true), (Adam*)nullptr);
    case Kind::adamw:
      return with(AdamWOptions(rate).betas({0.8, 0.95}), (AdamW*)nullptr);
    case Kind::adagrad:
      return with(AdagradOptions(rate).lr_decay(1e-2), (Adagrad*)nullptr);
    case Kind::rmsprop:
      return with(RMSpropOptions(rate).momentum(0.5).centered(true), (RMSprop*)nullptr);
  }
  return nullptr;
}

struct Layout {
  int tensor, data, pipeline;
  int size() const { return tensor * data * pipeline; }
};
inline void PrintTo(const Layout& layout, std::ostream* out) {
  *out << "tensor " << layout.tensor << ", data " << layout.data << ", pipeline "
       << layout.pipeline;
}

inline Tensor tokens_of(int64_t step) {
  return (torch::arange(kBatch * kLength) * 7 + step * 5).view({kBatch, kLength}) % kWords;
}
inline Tensor loss_of(const Tensor& logits, const Tensor& tokens) {
  return torch::nn::functional::cross_entropy(logits.reshape({-1, kWords}),
                                              (tokens.reshape({-1}) + 3) % kWords);
}

/// A program's run: model, optimizer and scheduler on one rank of a layout.
class Session {
 public:
  struct Setting {
    Kind kind = Kind::adamw;
    bool optimizer_first = true;  ///< made before `initialize`
    uint64_t seed = 7;
    double rate = kRate;
    double dropout = 0;
  };

  Session(const World& world, const Layout& layout, const Setting& setting)
      : model(test::make_seeded(setting.seed, [&] { return Net(setting.dropout); })) {
    if (setting.optimizer_first) make(setting);
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { loss_of(model->forward(tokens_of(0)), tokens_of(0)); };
    Config config = Config::parse(R"({"model_parallelism": {"enable": true}})");
    config.set(c10::str("model_parallelism.tensor_parallel_size=", layout.tensor));
    config.set(c10::str("model_parallelism.pipeline_parallel_size=", layout.pipeline));
    parallel.emplace(initialize(model, config, how));
    if (!setting.optimizer_first) make(setting);
    if (layout.pipeline > 1) {
      schedule.emplace(*parallel, PipelineOptions().num_microbatches(2));
    } else {
      ddp.emplace(model, parallel->mpu().get_data_parallel_group());
    }
  }

  /// The loss of each step from `begin` to `end`.
  std::vector<double> train(int64_t begin, int64_t end) {
    std::vector<double> losses;
    for (int64_t step = begin; step < end; ++step) {
      optimizer->zero_grad();
      const MPU& mpu = parallel->mpu();
      const Tensor tokens = tokens_of(step).tensor_split(mpu.get_data_parallel_world_size(),
                                                         0)[mpu.get_data_parallel_rank()];
      Tensor loss;
      if (schedule) {
        loss = schedule
                   ->forward_backward_step({tokens},
                                           [&](const auto& micro) {
                                             return loss_of(model->forward(micro[0]), micro[0]);
                                           })
                   .loss;
      } else {
        loss = loss_of(ddp->forward(tokens), tokens);
        loss.backward();
      }
      optimizer->step();
      scheduler->step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }

  SaveOptions to_save() const {
    return SaveOptions().optimizer(optimizer.get()).scheduler(scheduler.get());
  }
  LoadOptions to_load() const {
    return LoadOptions().optimizer(optimizer.get()).scheduler(scheduler.get());
  }

  /// Every parameter that is used, whole; collective.
  std::vector<Tensor> weights() const {
    const torch::NoGradGuard no_grad;
    std::vector<Tensor> whole;
    for (const Tensor& p : {model->table->weight, model->up->weight, model->up->bias,
                            model->down->weight, model->down->bias, model->frozen}) {
      whole.push_back(full_tensor(p).detach().clone());
    }
    return whole;
  }

  std::vector<double> rates() const {
    std::vector<double> rates;
    for (const auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
    return rates;
  }

  Net model;
  std::optional<ParallelModel> parallel;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<torch::optim::StepLR> scheduler;
  std::optional<DistributedDataParallel<Net>> ddp;
  std::optional<PipelineSchedule> schedule;

 private:
  void make(const Setting& setting) {
    optimizer = make_optimizer(setting.kind, model, setting.rate);
    scheduler = std::make_unique<torch::optim::StepLR>(*optimizer, 2, 0.5);
  }
};

/// What LibTorch alone trains.
struct OneDevice {
  explicit OneDevice(Kind kind)
      : model(test::make_seeded(7, [] { return Net(); })),
        optimizer(make_optimizer(kind, model)),
        scheduler(*optimizer, 2, 0.5) {}
  void train(int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      optimizer->zero_grad();
      loss_of(model->forward(tokens_of(step)), tokens_of(step)).backward();
      optimizer->step();
      scheduler.step();
    }
  }
  std::vector<Tensor> weights() const {
    return {model->table->weight, model->up->weight, model->up->bias,
            model->down->weight,  model->down->bias, model->frozen};
  }
  Net model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  torch::optim::StepLR scheduler;
};

inline void expect_same_bits(const std::vector<Tensor>& actual,
                             const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << "weight " << i;
  }
}

/// To the order of sums in double: the losses of a few steps differ by 1e-15 of their size, which
/// the adaptive optimizers' quotients enlarge.
inline void expect_close(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-8, 1e-9))
        << "weight " << i << " differs by " << (actual[i] - expected[i]).abs().max();
  }
}

}  // namespace oslo::resume_test
