#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mpu/rank_order.h"
#include "mpu/transport/transport.h"

namespace oslo {

/// Whose names a config uses. `none` holds no dialect's key yet: everything has its default.
enum class ConfigDialect { none, oslo, libai, colossal_ai };

/// "OSLO", "LiBai", "Colossal-AI", or "no dialect".
std::string to_string(ConfigDialect dialect);

/// The sizes of the axes in a world of known size. `data * tensor * pipeline` is the world size.
struct ParallelSizes {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  std::string tensor_mode = "1d";  ///< "1d", "2d", "2.5d", "3d" or "sequence"
  int depth = 1;                   ///< the d of 2.5d (tensor = q * q * d), 1 for every other mode
  RankOrder rank_order = RankOrder::pp_dp_tp;
  Transport backend = Transport::automatic;
  std::optional<std::chrono::seconds> timeout;  ///< unset: the world's
  bool enabled = true;  ///< false: leave the model untouched; then tensor and pipeline are 1
};

/// Everything a config says, in the same words whichever dialect it was written in. A field that a
/// dialect has no key for holds its default.
struct ConfigValues {
  ConfigDialect dialect = ConfigDialect::none;
  bool enabled = true;
  std::optional<int> data_parallel_size;  ///< unset: inferred from the world
  int tensor_parallel_size = 1;
  int pipeline_parallel_size = 1;
  std::optional<std::string> tensor_mode;  ///< unset: "1d"
  std::optional<int> depth;                ///< 2.5d only
  RankOrder rank_order = RankOrder::pp_dp_tp;
  Transport backend = Transport::automatic;
  std::optional<std::chrono::seconds> timeout;  ///< how long ranks wait for each other
  /// (pattern, "column" | "row" | "vocab" | "replicate") in the order written.
  std::vector<std::pair<std::string, std::string>> plan;

  std::optional<int> pipeline_num_layers;
  std::optional<std::vector<int>> custom_pipeline_stage_id;  ///< one stage per layer
  int num_accumulation_steps = 1;
  bool activation_checkpoint = false;
  bool zero_optimization = false;
  int zero_stage = 1;
  bool amp = false;
};

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
