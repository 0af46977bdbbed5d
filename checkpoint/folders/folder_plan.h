#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/index/checkpoint_index.h"
#include "checkpoint/storage/format.h"

namespace oslo {

/// What a checkpoint's folder is to hold: for each file the parts of tensors in it.
struct FolderPlan {
  struct Part {
    std::string tensor;
    CheckpointIndex::Cuts cuts;  ///< none: all of it
  };
  struct File {
    std::string stem;  ///< its name without the extension
    Format format = kDefaultFormat;
    std::vector<Part> parts;
    bool tied = false;  ///< whether it says which tensors have second names
  };

  bool merged = false;
  RankGrid mesh;  ///< the ranks whose files these are; of one where it is merged
  std::vector<File> files;
  nlohmann::json parallel_config;  ///< for parallel_config.json; null: none
};

/// Whole tensors, as `SaveOptions::merge_checkpoints` writes them, an optimizer's in a file of
/// their own. Without a format: a file of each that a save writes unasked.
FolderPlan plan_merged(const CheckpointIndex& index, std::optional<Format> format = std::nullopt);

/// The files of ranks in another format; of whole tensors as `plan_merged` has them.
FolderPlan plan_converted(const CheckpointIndex& index, Format format);

/// One file a coordinate of `tensor` x `pipeline` ranks. A tensor that was cut is cut in the same
/// dimension and the same stretches (those of a fused query-key-value, say), evenly over `tensor`
/// ranks; where nothing was, every tensor of two or more dimensions is cut by its first one. Whole
/// tensors lie in the first tensor rank's files. Tensors go to stages in the order of their names,
/// numbers in them by value, an optimizer's with their parameters, each stage of about as many
/// bytes. A load takes any layout, so that none of this has to be what a model's plan will be: then
/// ranks read parts of several files.
FolderPlan plan_resharded(const CheckpointIndex& index, int tensor, int pipeline, Format format);

}  // namespace oslo
