#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/formats/json/bounded_json.h"
#include "checkpoint/index/saved_optimizer.h"
#include "checkpoint/storage/content_hash.h"
#include "checkpoint/storage/file_io.h"
#include "mpu/grid/rank_grid.h"
#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// The name of the index in a checkpoint's folder.
inline constexpr char kIndexName[] = "oslo_checkpoint.json";

/// The name of a file that many parts lie in: copies share the text.
class FileName {
 public:
  FileName(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  FileName(const char* text) : FileName(std::string(text)) {}
  const std::string& text() const { return *text_; }
  operator const std::string&() const { return *text_; }
  bool operator==(const FileName& other) const {
    return text_ == other.text_ || *text_ == *other.text_;
  }
  template <typename Text>
  requires std::convertible_to<const Text&, std::string_view>
  bool operator==(const Text& text) const { return *text_ == std::string_view(text); }

 private:
  std::shared_ptr<const std::string> text_;
};

/// What an index may have: a reader refuses more before it takes memory for it, and a writer
/// refuses what no reader would take.
struct IndexLimits {
  JsonLimits json = {.bytes = 256 << 20, .values = 8 << 20, .depth = 12};
  size_t parts = 16 << 20;   ///< of all tensors
  size_t pieces = 16 << 20;  ///< of all cuts, one a rank
};

/// The table of contents of a checkpoint: which files there are, and which part of which tensor
/// each holds. Cuts are stored run by run, so that any other cut can be computed from them. A
/// merged checkpoint is one whose parts are all whole.
///
///   {"format": "oslo_checkpoint", "version": 2,
///    "mesh": {"tensor": 2, "pipeline": 1, "data": 2, "rank_order": "pp-dp-tp"},
///    "files": {"pytorch_model_tp_0_pp_0.safetensors": {"bytes": 1234, "xxh128": "..."}, ...},
///    "cuts": [[{"repeat": 1, "pieces": [[1, 27], [1, 26]]}], ...],
///    "places": [[["pytorch_model_tp_0_pp_0.safetensors", 0, 0],
///                ["pytorch_model_tp_1_pp_0.safetensors", 0, 1]], ...],
///    "tensors": {"wte.weight": {"shape": [53, 8], "dtype": "float32",
///                               "cuts": [[0, 0]], "places": 0}, ...},
///    (of a tensor whose transpose the files hold also "transposed": true)
///    "ties": {"lm_head.weight": "wte.weight"},
///    "optimizer": {"kind": "AdamW", ...}, "scheduler": {"steps": 5},
///    "random_states": {"mesh": {...}},
///    "checksum": "<sha256 of all the above>"}
///
/// A cut is there once, its pieces as how many ranks have how many elements. A tensor's "cuts" are
/// dimensions and numbers of cuts, its "places" the number of a list of its parts, which tensors of
/// other shapes in the same files share: each part is a file, and for each cut that makes it the
/// number among the tensor's, outermost first, and the rank. So the index grows with tensors, and
/// with ranks, not with their product.
///
/// Version 1 had in each tensor the list
///   "parts": [{"file": "pytorch_model_tp_0_pp_0.safetensors",
///              "cuts": [{"dim": 0, "rank": 0, "runs": [{"repeat": 1, "pieces": [27, 26]}]}]}, ...]
/// and is read, too. Of a grid of other axes "mesh" is {"axes": [{"name": "row", "size": 2}, ...]},
/// outermost first.
struct CheckpointIndex {
  using File = FileContents;
  /// What a rank of one mesh axis keeps of a dimension. Where two cut the same dimension, the later
  /// one cuts what the earlier one left.
  struct PartCut {
    int64_t dim;
    int rank;
    CutPtr cut;
    bool operator==(const PartCut& other) const {
      return dim == other.dim && rank == other.rank && *cut == *other.cut;
    }
  };
  using Cuts = c10::SmallVector<PartCut, 1>;
  struct Part {
    FileName file;
    Cuts cuts;  ///< outermost axis first; empty: all of the tensor
  };
  struct Tensor {
    std::vector<int64_t> shape;  ///< global
    c10::ScalarType dtype;
    std::vector<Part> parts;
    /// Whether the files hold the transpose of a matrix, which has one whole part in each of them:
    /// Python's layout, in a merged folder beside the config.json of a family that has it so. A
    /// reader that does not know the entry finds another shape in the file than the index says.
    bool transposed = false;
  };

  /// The ranks that saved. The data size says how many copies were trained, nothing more.
  RankGrid mesh;
  /// Also those that no tensor lies in (config.json).
  std::map<std::string, File> files;
  /// The model's, and under `optimizer_key` those of the optimizer's states.
  std::map<std::string, Tensor> tensors;
  /// Other names of tensors.
  std::map<std::string, std::string> ties;
  std::optional<SavedOptimizer> optimizer;
  std::optional<int64_t> scheduler_steps;
  /// Where the folder has random states: the ranks whose they are.
  std::optional<RankGrid> random_mesh;

  /// Takes over the files, parts and ties of another rank's index of the same model. Throws where
  /// the two disagree on a tensor.
  void add(const CheckpointIndex& other);

  /// Throws `Error` naming the file if it cannot be written, or not be read afterwards.
  void write(const std::filesystem::path& path, const IndexLimits& limits = {}) const;

  /// Throws `Error` naming the file, and the tensor and entry where there is one: no JSON, more
  /// than the limits, another version, a missing entry, one of the wrong type, cuts that do not fit
  /// the shape, a part in a file that is not listed, or a checksum that does not fit (a flipped
  /// byte, an edit by hand).
  static CheckpointIndex read(const std::filesystem::path& path);
  /// The same; `checksum`, where it is not null, gets the index's.
  static CheckpointIndex read(const InputFile& file, std::string* checksum = nullptr,
                              const IndexLimits& limits = {});
};

/// What this rank keeps under `layout` (null: all).
CheckpointIndex::Cuts cuts_of(const LayoutPtr& layout);

/// "whole", or "dim 0: part 1 of 27+26" joined by "; ", repeated stretches as "3 x (4+4)".
std::string to_string(const CheckpointIndex::Cuts& cuts);

/// "tensor_parallel_size 2, pipeline_parallel_size 1"; of other axes "row 2 x column 2".
std::string describe(const RankGrid& mesh);

}  // namespace oslo
