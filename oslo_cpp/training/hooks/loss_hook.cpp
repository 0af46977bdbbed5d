#include "oslo_cpp/training/hooks/loss_hook.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/training/show/text_file.h"

namespace oslo {
namespace {

double of_all_data_ranks(const Training& training, const TrainedBatch& batch) {
  const double weight = batch.weight;
  const double own = weight == 0 ? 0 : batch.loss.item<double>() * weight;
  at::Tensor sums = at::tensor({own, weight}, at::kDouble);
  if (training.mpu().size("data") > 1) sums = training.mpu().data_group()->all_reduce(sums);
  return (sums[0] / sums[1]).item<double>();
}

/// JSON has no NaN.
nlohmann::json saved(const Curve& curve) {
  nlohmann::json points = nlohmann::json::array();
  for (const auto& [step, value] : curve.points) {
    points.push_back({step, std::isfinite(value) ? nlohmann::json(value) : nlohmann::json()});
  }
  return points;
}

void load(const nlohmann::json& points, Curve& curve) {
  curve.points.clear();
  for (const nlohmann::json& point : points) {
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    curve.points.emplace_back(point.at(0).get<int64_t>(),
                              point.at(1).is_null() ? nothing : point.at(1).get<double>());
  }
}

}  // namespace

LossHook::LossHook(std::string picture, int64_t every)
    : picture_(std::move(picture)), every_(every) {
  OSLO_CHECK(every >= 1, "LossHook: every ", every, "; read a loss every 1 or more batches");
}

void LossHook::after_train_iter(Training& training, const TrainedBatch& batch) {
  if (++batches_ % every_ != 0) return;
  train_.points.emplace_back(training.steps, of_all_data_ranks(training, batch));
}

void LossHook::after_test(Training& training) {
  test_.points.emplace_back(training.steps, training.metrics.at("test/loss"));
}

void LossHook::after_epoch(Training& training) {
  if (picture_.empty()) return;
  write_text_once(training.mpu().world(), picture_, [&] { return curve_picture({train_, test_}); });
}

nlohmann::json LossHook::state_dict() const {
  return {{"batches", batches_}, {"train", saved(train_)}, {"test", saved(test_)}};
}

void LossHook::load_state_dict(const nlohmann::json& state) {
  batches_ = state.at("batches");
  load(state.at("train"), train_);
  load(state.at("test"), test_);
}

}  // namespace oslo
