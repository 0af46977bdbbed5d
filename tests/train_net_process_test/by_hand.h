#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "oslo_cpp/train_net/model_table.h"

namespace oslo::test {

/// What a training by hand is of, in one process, with nothing of this library but the model and
/// the data, which are the tutorials' plain ones.
struct ByHand {
  std::string model;
  nlohmann::json cfg, train, test;
  int64_t rows = 8, iterations = 3, warmup = 0;
  bool cosine = true;
  bool sgd = false;  ///< with momentum 0.9; else AdamW
  double lr = 1e-2, weight_decay = 0.01, clip = 1.0;
  int64_t seed = 1234;
};

struct Trained {
  std::vector<double> losses;
  double test_loss = 0;
};

inline torch::Tensor mean_of(const TrainedModel& net, const std::vector<torch::Tensor>& batch) {
  const CountedLoss loss = net.criterion(net.forward(batch), batch);
  return loss.sum / loss.count.value();
}

inline std::vector<torch::Tensor> rows_of(const TrainingData& data,
                                          const std::vector<int64_t>& numbers) {
  std::vector<std::vector<torch::Tensor>> columns;
  for (const int64_t number : numbers) {
    const auto sample = data.sample(number);
    columns.resize(sample.size());
    for (size_t i = 0; i < sample.size(); ++i) columns[i].push_back(sample[i]);
  }
  std::vector<torch::Tensor> batch;
  for (const auto& column : columns) batch.push_back(torch::stack(column));
  return batch;
}

/// Plain LibTorch: AdamW or SGD, clipping, a learning rate by its formula.
inline Trained train_by_hand(const ByHand& how) {
  torch::set_num_threads(1);
  torch::manual_seed(how.seed);
  const TrainedModel net = load_trained_models(MODEL_ZOO).at(how.model)(
      ModelRequest{how.cfg, how.train, how.test, how.seed});
  std::vector<torch::Tensor> parameters;  // T5's embedding is of three modules
  for (const torch::Tensor& each : net.model->parameters()) {
    const auto is_it = [&](const torch::Tensor& other) { return other.is_same(each); };
    if (std::none_of(parameters.begin(), parameters.end(), is_it)) parameters.push_back(each);
  }
  std::unique_ptr<torch::optim::Optimizer> made;
  if (how.sgd) {
    made = std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(how.lr).momentum(0.9).weight_decay(how.weight_decay));
  } else {
    made = std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(how.lr).weight_decay(how.weight_decay));
  }
  torch::optim::Optimizer& optimizer = *made;
  Trained trained;
  const int64_t per_epoch = net.train.size / how.rows;
  for (int64_t step = 0; step < how.iterations; ++step) {
    auto generator =
        at::make_generator<at::CPUGeneratorImpl>(how.seed * 1000003 + step / per_epoch);
    const auto order = torch::randperm(net.train.size, generator, torch::kLong);
    const auto numbers = order.narrow(0, step % per_epoch * how.rows, how.rows);
    const std::vector<int64_t> rows(numbers.data_ptr<int64_t>(),
                                    numbers.data_ptr<int64_t>() + how.rows);
    double rate = how.lr;
    if (how.cosine && step < how.warmup) {
      rate *= static_cast<double>(step) / static_cast<double>(how.warmup);
    } else if (how.cosine) {
      const double passed =
          static_cast<double>(step - how.warmup) / static_cast<double>(how.iterations - how.warmup);
      rate *= (1 + std::cos(std::numbers::pi * passed)) / 2;
    }
    for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
    optimizer.zero_grad();
    const torch::Tensor loss = mean_of(net, rows_of(net.train, rows));
    loss.backward();
    if (how.clip > 0) torch::nn::utils::clip_grad_norm_(parameters, how.clip);
    optimizer.step();
    trained.losses.push_back(loss.item<double>());
  }
  if (net.test.size > 0) {
    const torch::NoGradGuard no_grad;
    net.model->eval();
    std::vector<int64_t> all(static_cast<size_t>(net.test.size));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    trained.test_loss = mean_of(net, rows_of(net.test, all)).item<double>();
  }
  return trained;
}

/// Roundings in float of three steps of some 1e-2 each; a step that is wrong differs by far more.
constexpr double kRounding = 2e-4;

inline void expect_losses(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], kRounding) << i;
}

}  // namespace oslo::test
