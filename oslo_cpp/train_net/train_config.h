#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oslo_cpp/config/config.h"
#include "oslo_cpp/train_net/train_values.h"

namespace oslo {

/// What `oslo train` reads (docs/train.md): LiBai's configs as JSON. Files inherit ("base"), keys
/// refer to others ("model.cfg.hidden_layers"), overrides of a command line win.
///
///     auto config = oslo::TrainConfig::from_file("configs/bert_large_pretrain.json");
///     config.set("train.dist.tensor_parallel_size=2");
///
/// Strict as oslo::Config is: what is not understood is a `ConfigError`.
class TrainConfig {
 public:
  static TrainConfig from_file(const std::string& path);
  static TrainConfig parse(const std::string& text);

  /// "path=value"; later ones win. On `ConfigError` the config is unchanged.
  void set(const std::string& assignment);

  /// Beside the sizes. Throws where a reference or a rule between keys does not hold.
  TrainValues values() const;
  /// What `initialize` is given.
  Config parallel() const;

  /// With bases, overrides, references and lists worked in, as text that `from_file` reads.
  std::string to_string() const;
  /// The same with the stages that `initialize` gave the layers (Config::with_stage_ids).
  std::string to_string(const Config& initialized) const;

 private:
  explicit TrainConfig(nlohmann::ordered_json document);
  nlohmann::ordered_json resolved() const;

  nlohmann::ordered_json document_;  ///< as written: with references
};

}  // namespace oslo
