#pragma once

#include <filesystem>

#include "checkpoint/pretrained/pretrained_options.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Saves a model as a folder that `from_pretrained` of Python's `transformers` opens, and
/// `load_pretrained`: config.json and model.safetensors, or model-00001-of-0000N.safetensors and
/// their index where they would be larger than `PretrainedOptions::max_shard_bytes`. Names are the
/// model's, matrices lie as the family's table says (`PretrainedFamily`). Tied weights are written
/// once, under their first name, where config.json ties them, and under every name where it says
/// "tie_word_embeddings": false.
///
/// config.json is `PretrainedOptions::config`, or what the folder has already; its "dtype" (or
/// "torch_dtype"), where it has one, becomes the model's. What was in the folder before is
/// replaced as a whole when everything is on the disk, and stays as it was until then, also where
/// this throws.
///
/// Throws `Error` for a config of no known family; for one that ties what the model has twice; for
/// a folder with files that no such save writes (a tokenizer's, say: they would be lost); for a
/// failed write; and in a process of its own for a model that is cut over ranks.
void save_pretrained(const ModelView& model, const std::filesystem::path& folder,
                     const PretrainedOptions& options = {});

/// The same of a model that may be cut over ranks and pipeline stages; collective over the world.
/// Rank 0 writes. Tensors are gathered one by one, and rank 0 keeps those of one file at a time:
/// memory for `max_shard_bytes`. Every rank throws the same `Error`, or returns after the folder
/// took its name.
void save_pretrained(const ModelView& model, const MPU& mpu, const std::filesystem::path& folder,
                     const PretrainedOptions& options = {});

}  // namespace oslo
