#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/formats/json/json_node.h"
#include "checkpoint/index/checkpoint_index.h"

namespace oslo {

// How an index writes and reads the parts of tensors, each cut and each list of places once
// (CheckpointIndex).

/// Gathers the tables of an index that is written.
class IndexTables {
 public:
  explicit IndexTables(const IndexLimits& limits) : limits_(limits) {}

  /// Writes "cuts" and "places" of a tensor into its entry. Throws `Error` beyond the limits.
  void add(const CheckpointIndex::Tensor& tensor, nlohmann::json& entry);

  const nlohmann::json& cuts() const { return cuts_; }
  const nlohmann::json& places() const { return places_; }

 private:
  size_t number_of(const CutPtr& cut);
  size_t number_of(const FileName& file);

  IndexLimits limits_;
  nlohmann::json cuts_ = nlohmann::json::array(), places_ = nlohmann::json::array();
  std::unordered_map<const Cut*, size_t> cuts_by_address_;
  std::vector<CutPtr> kept_;  // their addresses stay theirs
  std::unordered_map<std::string, size_t> cuts_by_contents_, places_by_contents_, files_;
  size_t parts_ = 0, pieces_ = 0;
};

/// Reads the parts of tensors out of an index of version 1 or 2.
class IndexParts {
 public:
  using Files = std::map<std::string, CheckpointIndex::File>;

  /// Reads the tables, where there are any. Refers to the arguments.
  IndexParts(const JsonNode& root, int64_t version, const Files& files, const IndexLimits& limits);

  /// The parts that a tensor's entry tells. Throws `Error` naming the entry: none, cuts that do not
  /// fit the shape, a file that is not listed, a number of no table's entry, more than the limits.
  std::vector<CheckpointIndex::Part> of(const JsonNode& tensor, const std::vector<int64_t>& shape);

 private:
  struct Place {
    FileName file;
    c10::SmallVector<std::pair<size_t, int>, 1> cuts;  ///< number among the tensor's, and rank
  };

  CutPtr read_cut(const JsonNode& runs, bool in_counts);
  FileName file_of(const JsonNode& name, const JsonNode& where);
  std::vector<CheckpointIndex::Part> read_first_version(const JsonNode& tensor,
                                                        const std::vector<int64_t>& shape);

  int64_t version_;
  const Files& files_;
  IndexLimits limits_;
  std::map<std::string, FileName> names_;
  std::vector<CutPtr> cuts_;
  std::vector<std::vector<Place>> places_;
  size_t parts_ = 0, pieces_ = 0;
};

}  // namespace oslo
