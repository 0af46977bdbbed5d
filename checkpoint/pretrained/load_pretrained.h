#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "checkpoint/pretrained/pretrained_options.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// What a load brought to this rank.
struct PretrainedLoad {
  size_t tensors = 0;  ///< of the model, whole or in part
  uint64_t bytes = 0;  ///< of the files that went into them
};

/// Loads a folder of Hugging Face's, as `save_pretrained` of Python's `transformers` or of this
/// library leaves it (`PretrainedFolder`), into a model with its module and parameter names, on
/// this process alone. config.json says which family it is; the family's table says what is named
/// otherwise and what lies transposed (`PretrainedFamily`).
///
/// Strict: every parameter and buffer of the model must be there with its shape and type, and
/// nothing else, but for what the options allow. Of tied weights one name is enough; where the
/// files keep apart what the model ties, the values must be equal. Values are written in place, so
/// that optimizers made before keep theirs. It succeeds, or throws `Error` naming folder and tensor
/// and changes nothing. (Two things can only be found on the way: that there is no memory for one
/// tensor more, and a file that another program cuts meanwhile, which ends the process.)
///
/// Of safetensors files only what goes into this rank's parts is read, one tensor at a time; a
/// .bin is read whole.
PretrainedLoad load_pretrained(const ModelView& model, const std::filesystem::path& folder,
                               const PretrainedOptions& options = {});

/// The same into a model that may be cut over ranks and pipeline stages; collective over the world,
/// without a collective: ranks agree over the store, and read the files each for itself. If
/// anything does not fit on any rank, every rank throws the same `Error`, and no tensor of any rank
/// has changed. All ranks must see the same folder.
PretrainedLoad load_pretrained(const ModelView& model, const MPU& mpu,
                               const std::filesystem::path& folder,
                               const PretrainedOptions& options = {});

}  // namespace oslo
