#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace oslo {

/// Names and numbers are PyTorch's.
struct PlateauOptions {
  /// "min": a smaller metric is better, as of a loss; "max": a larger one, as of an accuracy.
  TORCH_ARG(std::string, mode) = "min";
  /// What rates are multiplied by, from 0 to below 1.
  TORCH_ARG(double, factor) = 0.1;
  /// How many metrics in a row may be no better, before rates become smaller.
  TORCH_ARG(int64_t, patience) = 10;
  /// How much better counts as better: a part of the best one ("rel"), or a difference ("abs").
  TORCH_ARG(double, threshold) = 1e-4;
  TORCH_ARG(std::string, threshold_mode) = "rel";
  /// How many metrics nothing is counted for after rates became smaller.
  TORCH_ARG(int64_t, cooldown) = 0;
  /// No rate becomes smaller than it.
  TORCH_ARG(double, min_lr) = 0.0;
  /// A rate that would change by no more than it stays.
  TORCH_ARG(double, eps) = 1e-8;
};

/// Lowers the learning rates when a metric has stopped to improve: PyTorch's ReduceLROnPlateau,
/// which LibTorch has in floats and with a state that nobody can save.
///
///     oslo::ReduceLROnPlateau plateau(optimizer, oslo::PlateauOptions().patience(3));
///     plateau.step(validation_loss);     // behind each evaluation
///
/// Every rank calls it with the same metric, one that is summed over data ranks
/// (training/metric_sums.h): it communicates nothing. A metric that is not a number is no better.
/// It comes back from a checkpoint by `SaveOptions().extra({{"plateau", plateau.state_dict()}})`;
/// the rates themselves lie with the optimizer. Not for several threads at a time. The optimizer
/// must outlive it.
class ReduceLROnPlateau {
 public:
  /// Throws for options out of range.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                             const PlateauOptions& options = {});

  /// Returns whether a rate became smaller.
  bool step(double metric);

  /// The best metric yet: infinity, or -infinity in mode "max", before the first.
  double best() const { return best_; }
  std::vector<double> get_last_lr() const;

  nlohmann::json state_dict() const;
  /// Throws for what is no state of one in this mode.
  void load_state_dict(const nlohmann::json& state);

 private:
  bool is_better(double metric) const;
  bool reduce();

  torch::optim::Optimizer& optimizer_;
  PlateauOptions options_;
  double best_;
  int64_t bad_ = 0;      ///< metrics in a row that were no better
  int64_t cooling_ = 0;  ///< metrics that still count for nothing
};

}  // namespace oslo
