#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace oslo {

struct ScheduleValues {
  std::string name = "WarmupCosineLR";
  std::optional<int64_t> warmup_iter;  ///< unset: warmup_ratio of all iterations
  double warmup_factor = 0;            ///< where warming up begins, of the rate
  double alpha = 0;                    ///< what is left at the end, of the rate
  double power = 1;                    ///< of WarmupPolynomialLR
  std::vector<int64_t> milestones;     ///< of WarmupMultiStepLR
  double gamma = 0.1;                  ///< of WarmupMultiStepLR
};

struct OptimizerValues {
  std::string name = "AdamW";
  double lr = 1e-4;
  double weight_decay = 0.01;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double momentum = 0;                       ///< of SGD
  std::optional<double> clip_grad_max_norm;  ///< unset: gradients are not clipped
  double clip_grad_norm_type = 2;
};

/// Everything that a training's config says beside how the model is divided, with LiBai's names and
/// defaults (docs/train.md); where one differs that is said there.
struct TrainValues {
  std::string model = "";
  std::optional<std::string> library;
  nlohmann::json cfg = nlohmann::json::object();
  nlohmann::json train_data, test_data;  ///< null: there is none

  std::string output_dir = "./output";
  std::string device_type = "cpu";
  std::optional<int64_t> train_micro_batch_size, global_batch_size, num_accumulation_steps;
  int64_t train_iter = 10000;
  int64_t train_epoch = 0;
  double warmup_ratio = 0;
  std::optional<ScheduleValues> scheduler;  ///< unset: the rate stays
  int64_t checkpoint_period = 5000;
  int max_to_keep = 100;  ///< 0: all
  std::optional<int64_t> test_micro_batch_size;
  std::optional<bool> evaluates;  ///< unset: where there are data for it
  int64_t eval_period = 5000;
  std::optional<int64_t> eval_iter;  ///< unset: all data
  bool eval_after_train = true;
  std::optional<std::string> load_weight;
  int64_t log_period = 20;
  int64_t seed = 1234;
  OptimizerValues optim;
};

/// Reads a document that was checked by train_schema.h.
TrainValues read_train_values(const nlohmann::ordered_json& document);

/// The rules between keys: a model, data, two betas. Throws `ConfigError`.
void check_train_values(const TrainValues& values);

}  // namespace oslo
