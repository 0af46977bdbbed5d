#include "oslo_cpp/train_net/train_command.h"

#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/world/world.h"
#include "oslo_cpp/train_net/model_table.h"
#include "oslo_cpp/train_net/net_trainer.h"
#include "oslo_cpp/train_net/output_folder.h"

namespace oslo {
namespace {

constexpr int kMisuse = 2;

TrainConfig config_of(const nlohmann::json& request) {
  TrainConfig config = TrainConfig::from_file(request.at("config"));
  for (const auto& override : request.at("overrides")) config.set(override.get<std::string>());
  return config;
}

std::string library_of(const nlohmann::json& request, const TrainValues& values) {
  if (!request.at("model_library").is_null()) return request["model_library"];
  return values.library ? *values.library : find_model_library();
}

/// What can be said without ranks and without the model.
void check(const TrainConfig& config, int ranks) {
  const TrainValues values = config.values();
  batch_sizes(values, config.parallel().resolve(ranks).data);
}

void train(const TrainConfig& config, const nlohmann::json& request) {
  const TrainValues values = config.values();
  const TrainedModels models = load_trained_models(library_of(request, values));
  const World world = World::from_environment();
  const bool resumes = request.at("resume"), evaluates = request.at("eval_only");
  OSLO_CHECK_AS(config, !evaluates || resumes || !values.load_weight.value_or("").empty(),
                "--eval-only: of which weights? Set 'train.load_weight' to a checkpoint, or take "
                "those of the output folder with --resume");
  if (!world.plan_only() && (resumes || !evaluates)) {
    check_output_folder(world, values.output_dir, resumes);
  }
  NetTrainer trainer(config, models, world);
  if (resumes) trainer.resume();
  if (!evaluates) return trainer.train();
  const double loss = trainer.evaluate();
  if (world.rank() == 0) std::cout << "loss " << loss << std::endl;
}

int run(const nlohmann::json& request) {
  bool reads = true;  // the config: whatever is wrong with it is misuse
  try {
    const TrainConfig config = config_of(request);
    const int ranks = request.at("check_for_ranks");
    if (ranks > 0) {
      check(config, ranks);
      return 0;
    }
    reads = false;
    train(config, request);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "oslo train: " << message_of(error) << std::endl;
    return reads || kind_of(error) == ErrorKind::config ? kMisuse : 1;
  }
}

}  // namespace
}  // namespace oslo

int oslo_train(const char* request) {
  return oslo::run(nlohmann::json::parse(request));
}
