#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "oslo_cpp/model/parallel_model.h"
#include "oslo_cpp/training/metrics/metric_sums.h"

namespace oslo {

/// A batch behind its step, or its evaluation, as hooks see it. Numbers are those of this data
/// rank's rows.
struct TrainedBatch {
  /// Of the whole batch, on the ranks of the last stage, where a hook asks for outputs; else
  /// undefined.
  at::Tensor output, label;
  /// One number, on all ranks of the model: of these rows, or of those of all data ranks where the
  /// criterion counts.
  at::Tensor loss;
  int64_t rows = 0;
  /// Elements of the label: tokens of a text, rows of pictures.
  int64_t labels = 0;
  /// What the loss is a mean of: what the criterion counted, else rows.
  double weight = 0;
  /// Whether the optimizer stepped behind it.
  bool stepped = false;
};

/// Where a Trainer is, for its hooks. The same on every rank, but for the batch and the sums.
struct Training {
  ParallelModel parallel;
  torch::optim::Optimizer& optimizer;

  int64_t epoch = 0;      ///< the one under way, from 0
  int64_t epochs = 0;     ///< as many as fit() is to run, in all
  int64_t batch = 0;      ///< those of this epoch, or of this evaluation, that are through
  int64_t batches = -1;   ///< those of an epoch; -1: nobody knows yet
  int64_t steps = 0;      ///< of the optimizer, in all epochs
  int64_t max_steps = 0;  ///< after which fit() ends; 0: none

  /// Of the epoch, or the evaluation, that is under way: hooks add to it.
  MetricSums sums = {};
  /// The means of the last epoch and the last evaluation: "train/loss", "test/accuracy".
  Metrics metrics = {};

  /// Not empty: fit() ends behind this epoch, for this reason.
  std::string stopped = {};

  /// For a checkpoint: the counts above, and what the hooks go on from.
  std::function<nlohmann::json()> state_dict = {};

  const MPU& mpu() const { return parallel.mpu(); }
  /// Whether this rank is the one that speaks.
  bool leads() const { return mpu().world().rank() == 0; }
  bool is_last_stage() const { return mpu().is_pipeline_last_stage(); }
};

}  // namespace oslo
