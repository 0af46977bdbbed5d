#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <vector>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/directory/load_options.h"
#include "checkpoint/state/model_state.h"

namespace oslo {

/// Loads a checkpoint into an ordinary model on this process alone: a folder (merged, or parallel
/// of any layout; one of Hugging Face's as `load_pretrained` reads it) or one *.safetensors or
/// *.bin file. Strict: the names must be those of the module, and shapes and dtypes the same; of
/// tied weights one name is enough. Values are written into the module's tensors in place, so
/// optimizers made before keep theirs. Reads everything before it writes anything: it succeeds, or
/// throws `Error` naming file and tensor and changes nothing. A folder that this library saved is
/// also checked by its hashes; where the index that has them is gone, a line on standard error says
/// so. Optimizer, scheduler and random states are read as `load_parallelized` reads them on one
/// rank: random generators go on from those of the first rank of the run that saved, this rank's
/// own.
void load_state(const ModelView& model, const std::filesystem::path& path,
                const LoadOptions& options = {});

/// The values for `state.tensors`, one each, from `folder`: this rank's parts, checked as above,
/// nothing written yet. `convert`: as `LoadOptions::convert`; the values have the files' types.
std::vector<at::Tensor> read_state(const ModelState& state, const CheckpointFolder& folder,
                                   bool convert = false);

/// Writes them.
void copy_into(const ModelState& state, const std::vector<at::Tensor>& values);

}  // namespace oslo
