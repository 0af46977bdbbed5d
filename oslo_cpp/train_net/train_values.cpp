#include "oslo_cpp/train_net/train_values.h"

#include <cmath>

#include "mpu/base/error.h"
#include "oslo_cpp/config/config_json.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
void read(const Json& object, const char* key, T& value) {
  if (const Json& found = json_member(object, key); !found.is_null()) value = found.get<T>();
}

template <typename T>
void read(const Json& object, const char* key, std::optional<T>& value) {
  if (const Json& found = json_member(object, key); !found.is_null()) value = found.get<T>();
}

ScheduleValues read_schedule(const Json& scheduler) {
  ScheduleValues values;
  read(scheduler, "name", values.name);
  read(scheduler, "warmup_iter", values.warmup_iter);
  read(scheduler, "warmup_factor", values.warmup_factor);
  read(scheduler, "alpha", values.alpha);
  read(scheduler, "power", values.power);
  read(scheduler, "gamma", values.gamma);
  for (const Json& each : json_member(scheduler, "milestones")) {
    const double milestone = each.get<double>();
    OSLO_CHECK_AS(config, milestone == std::floor(milestone) && milestone <= 1e12,
                  "'train.scheduler.milestones' has ", milestone, "; give whole iterations");
    values.milestones.push_back(static_cast<int64_t>(milestone));
  }
  return values;
}

void read_optim(const Json& optim, OptimizerValues& values) {
  read(optim, "name", values.name);
  // Of LiBai's AdamW; LibTorch's others decay nothing unless said.
  if (values.name != "AdamW") values.weight_decay = 0;
  read(optim, "lr", values.lr);
  read(optim, "weight_decay", values.weight_decay);
  read(optim, "betas", values.betas);
  read(optim, "eps", values.eps);
  read(optim, "momentum", values.momentum);
  read(json_member(optim, "params"), "clip_grad_max_norm", values.clip_grad_max_norm);
  read(json_member(optim, "params"), "clip_grad_norm_type", values.clip_grad_norm_type);
}

}  // namespace

TrainValues read_train_values(const Json& document) {
  TrainValues values;
  const Json& train = json_member(document, "train");
  read(json_member(document, "model"), "name", values.model);
  read(json_member(document, "model"), "library", values.library);
  if (const Json& cfg = json_member(json_member(document, "model"), "cfg"); !cfg.is_null())
    values.cfg = cfg;
  values.train_data = json_member(json_member(document, "dataloader"), "train");
  values.test_data = json_member(json_member(document, "dataloader"), "test");

  read(train, "output_dir", values.output_dir);
  read(train, "device_type", values.device_type);
  read(train, "train_micro_batch_size", values.train_micro_batch_size);
  read(train, "global_batch_size", values.global_batch_size);
  read(train, "num_accumulation_steps", values.num_accumulation_steps);
  read(train, "train_iter", values.train_iter);
  read(train, "train_epoch", values.train_epoch);
  read(train, "warmup_ratio", values.warmup_ratio);
  if (const Json& scheduler = json_member(train, "scheduler"); !scheduler.is_null()) {
    values.scheduler = read_schedule(scheduler);
  }
  read(json_member(train, "checkpointer"), "period", values.checkpoint_period);
  read(json_member(train, "checkpointer"), "max_to_keep", values.max_to_keep);
  read(train, "test_micro_batch_size", values.test_micro_batch_size);
  const Json& evaluation = json_member(train, "evaluation");
  read(evaluation, "enabled", values.evaluates);
  read(evaluation, "eval_period", values.eval_period);
  read(evaluation, "eval_iter", values.eval_iter);
  read(evaluation, "eval_after_train", values.eval_after_train);
  read(train, "load_weight", values.load_weight);
  read(train, "log_period", values.log_period);
  read(train, "seed", values.seed);
  read_optim(json_member(document, "optim"), values.optim);
  return values;
}

void check_train_values(const TrainValues& values) {
  OSLO_CHECK_AS(config, !values.model.empty(),
                "there is no 'model.name': say which model is trained, as in \"model\": {\"name\": "
                "\"bert\", \"cfg\": {...}}");
  OSLO_CHECK_AS(config, !values.train_data.is_null(),
                "there is no 'dataloader.train': say what the model is trained on, as in "
                "\"dataloader\": {\"train\": {\"dataset\": \"synthetic\", \"samples\": 1000}}");
  OSLO_CHECK_AS(config, !values.output_dir.empty(),
                "'train.output_dir' is empty: name a folder for what the run writes");
  OSLO_CHECK_AS(config, values.optim.betas.size() == 2, "'optim.betas' has ",
                values.optim.betas.size(), " numbers: give two, as in [0.9, 0.999]");
  OSLO_CHECK_AS(config, values.optim.momentum == 0 || values.optim.name == "SGD",
                "'optim.momentum' = ", values.optim.momentum, " is SGD's, and 'optim.name' is ",
                values.optim.name, ": leave it out, or set the name to SGD");
  OSLO_CHECK_AS(config, values.warmup_ratio <= 1, "'train.warmup_ratio' = ", values.warmup_ratio,
                ": give the share of iterations that warms up, from 0 to 1");
  OSLO_CHECK_AS(config, values.scheduler || values.warmup_ratio == 0,
                "'train.warmup_ratio' = ", values.warmup_ratio,
                " without a 'train.scheduler', which would warm up: add \"scheduler\": {\"name\": "
                "\"WarmupCosineLR\"}, or set the ratio to 0");
  OSLO_CHECK_AS(config,
                !values.scheduler || !values.scheduler->warmup_iter || values.warmup_ratio == 0,
                "'train.scheduler.warmup_iter' and 'train.warmup_ratio' both say how long it warms "
                "up: keep one of them");
  OSLO_CHECK_AS(config, !values.evaluates.value_or(false) || !values.test_data.is_null(),
                "'train.evaluation.enabled' is true, and there is no 'dataloader.test': add it, or "
                "set enabled to false");
}

}  // namespace oslo
