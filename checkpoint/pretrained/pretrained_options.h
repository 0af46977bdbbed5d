#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/pretrained/family.h"

namespace oslo {

/// What `load_pretrained` and `save_pretrained` may be told. Every setter returns the object. What
/// is of one direction is refused in the other.
class PretrainedOptions {
 public:
  /// The table of a family that is not known, or another one than config.json's model_type names.
  PretrainedOptions& family(PretrainedFamily family);

  /// Loading: a tensor in the files that the model has no place for, by name or by a pattern with
  /// `*` for one component. What is not ignored is refused.
  PretrainedOptions& ignore(std::string pattern);

  /// Loading: whether floating-point values of another type are converted to the model's, rounding
  /// where that is the narrower one. False: they are refused.
  PretrainedOptions& convert(bool convert);

  /// Saving: the model's config.json, with "model_type" and whatever else `transformers` reads.
  PretrainedOptions& config(const nlohmann::json& config);

  /// Saving: the most bytes of tensors in one file; a tensor with more has one of its own. At
  /// least 1; throws `Error` otherwise.
  PretrainedOptions& max_shard_bytes(int64_t bytes);

  /// Null where none was given.
  const PretrainedFamily* family() const { return family_.get(); }
  const std::vector<std::string>& ignored() const { return ignored_; }
  bool convert() const { return convert_; }
  /// Null where none was given.
  const nlohmann::json* config() const { return config_.get(); }
  int64_t max_shard_bytes() const { return max_shard_bytes_.value_or(5'000'000'000); }

  /// Throw `Error` for what was given and is of the other direction, which would not be read.
  void check_loading() const;
  void check_saving() const;

  /// The family that a config.json names. Throws `Error`, listing the known ones, where it names
  /// none or another; `where` begins the message.
  const PretrainedFamily& family_of(const nlohmann::json& config, const std::string& where) const;

 private:
  std::shared_ptr<const PretrainedFamily> family_;
  std::vector<std::string> ignored_;
  bool convert_ = false;
  std::shared_ptr<const nlohmann::json> config_;
  std::optional<int64_t> max_shard_bytes_;
};

}  // namespace oslo
