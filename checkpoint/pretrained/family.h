#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace oslo {

/// What sets the files of a family of Hugging Face models apart from a C++ model with the same
/// module and parameter names, whose linear weights are LibTorch's [out, in].
///
/// Patterns are names with `*` for one component. They are written without the prefix.
struct PretrainedFamily {
  std::string model_type;  ///< as config.json has it: "gpt2"

  /// What the names of a model with a head begin with, and those of the bare model do not:
  /// "transformer.". Files of either kind load into models of either kind.
  std::string prefix;

  /// Matrices that lie as [in, out] in the files and in Python's own model (GPT-2's `Conv1D`). Of a
  /// model that came from Python nothing is transposed (`transposed_matrices`).
  std::vector<std::string> transposed;

  /// Names in files of older versions that no parameter stands behind: masks, positions.
  std::vector<std::string> spare;

  /// Last components of names in files of older versions, and what they are today.
  std::vector<std::pair<std::string, std::string>> renamed;

  /// Stretches of the files' names and what they are in the modules of Python's model, where
  /// `transformers` has renamed these and left its files: in this order, so that an exported model
  /// finds its tensors. Python opens files of either.
  std::vector<std::pair<std::string, std::string>> modules = {};

  /// A head's parameter and the table whose values it has, as names with the prefix, where
  /// config.json says "tie_word_embeddings"; `tied` is what holds where it says nothing.
  std::vector<std::pair<std::string, std::string>> ties;
  bool tied = false;

  /// Whether the matrix of this name lies transposed.
  bool lies_transposed(const std::string& name) const;
  /// Whether the name of a file stands for nothing to load.
  bool is_spare(const std::string& name) const;
  /// The names that a model may have for what a file calls `name`, the likeliest first.
  std::vector<std::string> names_for(const std::string& name) const;

 private:
  std::string without_prefix(const std::string& name) const;
};

/// Whether `name` is `pattern`, in which `*` stands for one component.
bool matches_pattern(const std::string& name, const std::string& pattern);

/// The families that are known: GPT-2, Llama, BERT, T5, ViT.
const std::vector<PretrainedFamily>& pretrained_families();

/// The one that a config.json names by its model_type; null where it names none of them.
const PretrainedFamily* find_family(const nlohmann::json& config);

}  // namespace oslo
