#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oslo_cpp/config/config_values.h"

namespace oslo {

/// What to parallelize and how, read from JSON in the words of OSLO, LiBai or Colossal-AI.
///
///     auto config = oslo::Config::parse(R"({"model_parallelism": {"tensor_parallel_size": 2}})");
///     config.set("model_parallelism.tensor_parallel_size=4");  // from a command line
///
/// Strict: a key, type or value that is not understood is an `Error`, never ignored or clamped.
/// docs/configuration.md lists every key. An empty config is valid: all sizes 1, data parallelism
/// over the whole world.
class Config {
 public:
  Config();

  /// Reads JSON text; `//` and `/* */` comments are allowed. Throws `Error` with line and column
  /// for bad JSON, for a key that appears twice, and for more than 1 MiB or 16 levels of it.
  static Config parse(const std::string& text);

  /// Reads a JSON file as `parse` does; messages name the file.
  static Config from_file(const std::string& path);

  /// As `parse` of its text. `nlohmann::json` keeps keys in alphabetical order, so the patterns of
  /// a "plan" come in that order; `parse` keeps the order written.
  static Config from_json(const nlohmann::json& json);

  /// Overrides one value by "path=value", the path in the config's own dialect. The value is read
  /// as JSON, and as a string if it is none. Later calls win. In an empty config the first
  /// override decides the dialect. Rules between keys (a mode for each tensor size) are checked
  /// by `resolve`, so overrides may come in any order. On `Error` the config is unchanged.
  void set(const std::string& assignment);

  const ConfigValues& values() const { return values_; }

  /// This config with LiBai's `auto_pipeline_stage_id` and `actual_pipeline_stage_id`, a stage for
  /// each layer of a pipeline: in LiBai's dialect in `train.dist`, in the others at the top.
  /// `initialize` writes them; a config that has them gives a model the same stages again.
  Config with_stage_ids(const std::vector<int>& automatic, const std::vector<int>& actual) const;

  /// The document with its overrides, in its own dialect.
  nlohmann::json to_json() const;

  /// The same as JSON text, keys in the order written; `parse` reads it back. Equal texts mean
  /// equal configs.
  std::string to_string() const;

  /// Fits the sizes to a world: an unset data size becomes world / (tensor * pipeline). No
  /// communication, the same result or `Error` on every rank. Throws for sizes that are impossible
  /// in their mode or do not fit the world, and for what the library cannot do yet.
  ParallelSizes resolve(int world_size) const;

 private:
  explicit Config(nlohmann::ordered_json document);

  std::shared_ptr<const nlohmann::ordered_json> document_;  // never null, replaced as a whole
  ConfigValues values_;
};

}  // namespace oslo
