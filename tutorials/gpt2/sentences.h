#pragma once

#include <torch/data/datasets/base.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace gpt2 {

using Sentences = std::vector<std::string>;

// Each throws std::runtime_error that names the file, and the line where there is one: for a file
// that cannot be read, that is not what it should be, or that has no sentence in it.

/// The lines of a text that are not empty.
Sentences text_sentences(const std::string& path);

/// One entry of each line, which is a JSON object: what `datasets` of Python writes by `to_json`.
Sentences json_lines_sentences(const std::string& path, const std::string& field);

/// The contexts of a file of SQuAD (Rajpurkar et al. 2016), {"data": [{"paragraphs": [{"context":
/// "...", "qas": [...]}]}]}: one for each question, as `load_dataset("squad")` of Python lists
/// them.
Sentences squad_contexts(const std::string& path);

/// Sentences as a torch::data dataset: a batch is a std::vector<std::string>.
class SentenceDataset : public torch::data::datasets::Dataset<SentenceDataset, std::string> {
 public:
  explicit SentenceDataset(Sentences sentences) : sentences_(std::move(sentences)) {}

  std::string get(std::size_t index) override { return sentences_.at(index); }
  std::optional<std::size_t> size() const override { return sentences_.size(); }

 private:
  Sentences sentences_;
};

}  // namespace gpt2
