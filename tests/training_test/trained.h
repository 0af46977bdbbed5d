#pragma once

#include <gmock/gmock.h>

#include "oslo_cpp/training/hooks/accuracy_hook.h"
#include "oslo_cpp/training/trainer/trainer.h"
#include "tests/engine_test/cases.h"

// A Trainer over ranks against a loop in plain LibTorch on one device.
namespace oslo::test::trained {

using engines::Batches;
using engines::Example;
using pipeline_parity::Grid;
using torch::Tensor;

/// Rows of two classes, the last row of each batch of none.
inline Batches make_batches(const std::vector<int64_t>& sizes) {
  Batches batches = engines::make_batches(sizes);
  for (Example& batch : batches) {
    batch.target = (batch.target.select(1, 0) > 0).to(torch::kLong);
    batch.target[-1] = -100;
  }
  return batches;
}

inline Tensor mean_loss(const Tensor& output, const Tensor& label) {
  return torch::nn::functional::cross_entropy(output, label.clamp_min(0));
}

inline CountedLoss counted_loss(const Tensor& output, const Tensor& label) {
  namespace F = torch::nn::functional;
  return {F::cross_entropy(output, label, F::CrossEntropyFuncOptions().reduction(torch::kSum)),
          label.ne(-100).sum()};
}

/// One device's loop, by hand: `steps_of` batches a step, a loss of all that counts, or of the
/// batches' means.
struct OneDevice {
  explicit OneDevice(bool counts) : counts(counts), optimizer(engines::make_optimizer(net)) {}

  /// Returns the mean over the epoch.
  double epoch(const Batches& batches, size_t of_step) {
    double sum = 0, all = 0;
    for (size_t at = 0; at + of_step <= batches.size(); at += of_step) {
      optimizer.zero_grad();
      double count = 0;
      for (size_t i = at; i < at + of_step; ++i) count += weight(batches[i]);
      for (size_t i = at; i < at + of_step; ++i) {
        const Tensor loss = mean(batches[i]);
        const double own = weight(batches[i]);
        (loss * (counts ? own / count : 1.0 / static_cast<double>(of_step))).backward();
        sum += loss.item<double>() * own;
        all += own;
      }
      optimizer.step();
      if (behind_step) behind_step();
    }
    return sum / all;
  }

  Metrics evaluate(const Batches& batches) {
    const torch::NoGradGuard no_grad;
    double sum = 0, all = 0, right = 0, labels = 0;
    for (const Example& batch : batches) {
      sum += mean(batch).item<double>() * weight(batch);
      all += weight(batch);
      const Tensor counted = batch.target.ne(-100);
      right += net->forward(batch.data).argmax(1).eq(batch.target).sum().item<double>();
      labels += counted.sum().item<double>();
    }
    return {{"loss", sum / all}, {"accuracy", right / labels}};
  }

  double weight(const Example& batch) const {
    return counts ? batch.target.ne(-100).sum().item<double>()
                  : static_cast<double>(batch.target.size(0));
  }
  Tensor mean(const Example& batch) {
    const Tensor output = net->forward(batch.data);
    if (!counts) return mean_loss(output, batch.target);
    const CountedLoss loss = counted_loss(output, batch.target);
    return loss.sum / loss.count.value();
  }

  bool counts;
  torch::nn::Sequential net = engines::make_net();
  torch::optim::SGD optimizer;
  std::function<void()> behind_step = {};
};

inline void expect_metrics(const Metrics& seen, const Metrics& expected) {
  for (const auto& [name, mean] : expected) {
    ASSERT_TRUE(seen.count(name)) << name;
    EXPECT_NEAR(seen.at(name), mean, 1e-9) << name;
  }
}

}  // namespace oslo::test::trained
