#include "oslo_cpp/train_net/train_schema.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ConfigKey::Kind;
using namespace config_keys;

/// Sections of their own, beside "train".
constexpr std::array kSections = {"model", "optim", "dataloader"};

ConfigKey count(std::string name, int64_t minimum = 1) {
  return {.name = std::move(name),
          .kind = Kind::count,
          .maximum = int64_t{1} << 40,
          .minimum = minimum};
}

ConfigKey scheduler() {
  return nullable(object(
      "scheduler",
      {choice("name", rate_schedule_names()), nullable(count("warmup_iter", 0)),
       key("warmup_factor", Kind::amount), key("alpha", Kind::amount), key("power", Kind::amount),
       key("milestones", Kind::numbers), key("gamma", Kind::amount)}));
}

std::vector<ConfigKey> training_keys() {
  return {key("output_dir", Kind::text),
          key("device_type", Kind::text),
          nullable(count("train_micro_batch_size")),
          nullable(count("global_batch_size")),
          count("train_iter"),
          count("train_epoch", 0),
          key("warmup_ratio", Kind::amount),
          scheduler(),
          object("checkpointer", {count("period"), count("max_to_keep", 0)}),
          nullable(count("test_micro_batch_size")),
          object("evaluation", {nullable(key("enabled", Kind::flag)), count("eval_period"),
                                nullable(count("eval_iter")), key("eval_after_train", Kind::flag)}),
          nullable(key("load_weight", Kind::text)),
          count("log_period"),
          count("seed", 0)};
}

ConfigKey model() {
  return object("model", {key("name", Kind::text), nullable(key("library", Kind::text)),
                          key("cfg", Kind::any)});
}

ConfigKey optim() {
  return object("optim", {choice("name", optimizer_names()), key("lr", Kind::amount),
                          key("weight_decay", Kind::amount), key("betas", Kind::numbers),
                          key("eps", Kind::amount), key("momentum", Kind::amount),
                          object("params", {nullable(key("clip_grad_max_norm", Kind::amount)),
                                            key("clip_grad_norm_type", Kind::amount)})});
}

}  // namespace

std::vector<std::string> optimizer_names() {
  return {"AdamW", "Adam", "SGD"};
}

std::vector<std::string> rate_schedule_names() {
  return {"WarmupCosineLR", "WarmupPolynomialLR", "WarmupLinearLR", "WarmupMultiStepLR"};
}

ConfigKey train_schema() {
  ConfigKey root = config_schema(ConfigDialect::libai);
  for (ConfigKey& each : root.keys) {
    if (each.name != "train") continue;
    for (ConfigKey& more : training_keys()) each.keys.push_back(std::move(more));
  }
  root.keys.push_back(model());
  root.keys.push_back(optim());
  root.keys.push_back(
      object("dataloader", {key("train", Kind::any), nullable(key("test", Kind::any))}));
  return root;
}

Json parallel_part(const Json& document) {
  const ConfigKey libai = config_schema(ConfigDialect::libai);
  const ConfigKey& of_train = *libai.find("train");
  Json part = Json::object();
  for (const auto& [name, value] : document.items()) {
    if (std::find(kSections.begin(), kSections.end(), name) != kSections.end()) continue;
    if (name != "train") {
      part[name] = value;
      continue;
    }
    Json& train = part["train"] = Json::object();
    for (const auto& [below, each] : value.items()) {
      if (of_train.find(below) != nullptr) train[below] = each;
    }
  }
  return part;
}

}  // namespace oslo
