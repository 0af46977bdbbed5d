#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/directory/load_options.h"
#include "checkpoint/save/pending_save.h"
#include "checkpoint/save/save_options.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Saves a module whose parameters may be cut over ranks (marked); collective over the world. Keys
/// are the names of the unparallelized model. What was in `directory` before, if anything, is
/// replaced as a whole when all ranks have written and everything is on the disk; until then, and
/// if any rank fails or is killed, it stays as it was. Failures (a full disk, a damaged mark, ranks
/// with different models) throw the same `Error` on every rank; success returns on every rank after
/// the folder took its name. Replicas are not compared: data rank 0's values are saved.
///
/// Parallel (the default): one file per coordinate of a copy of the model,
/// `pytorch_model_tp_{t}_pp_{p}.safetensors` (or .bin), where other axes cut layers
/// `pytorch_model_row_{r}_column_{c}_pp_{p}`, written by data rank 0, with that coordinate's part
/// of each cut tensor; a whole tensor lies in the first coordinate's file only. The index
/// `oslo_checkpoint.json` says what is where. The folder must be one that all ranks see.
///
/// Merged: rank 0 writes `model.safetensors` and `pytorch_model.bin` (or the one asked for), and an
/// index with their hashes. As in Python, tied weights are under every name in the bin file,
/// sharing storage, and under their first name in the safetensors file, whose metadata lists the
/// others. Tensors are gathered one by one over data rank 0's tensor group; rank 0 keeps them, so
/// it needs memory for the whole model, the others for one tensor.
///
/// Either kind gets `config.json` and `extra.json` when `SaveOptions` has them; the index has its
/// hash, too. At world size 1 a parallel checkpoint is one file of whole tensors.
///
/// The state of `SaveOptions::optimizer` lies beside each parameter, in the same file and under the
/// same cut; of a merged save whole, in `optimizer.safetensors`. Every rank's random generators are
/// in `random_states.safetensors`.
void save_parallelized(const ModelView& model, const MPU& mpu, const std::string& directory,
                       const SaveOptions& options = {});

/// What the asynchronous saves of one model share.
struct SaveMemory {
  /// Over the world, and used by these saves alone.
  std::shared_ptr<Group> group;
  /// What the last one copied; the next one writes over it.
  std::vector<at::Tensor> tensors;
};

/// The same, but it returns when the tensors have been copied: a thread writes them, and the model
/// may be trained on. Collective over the world, as are the waits. A save that had `memory` before
/// must have ended. The copies are of what this rank writes: its part, or of a merged save on
/// rank 0 the whole.
std::shared_ptr<PendingSave> save_async(const ModelView& model, const MPU& mpu,
                                        const std::string& directory, const SaveOptions& options,
                                        SaveMemory& memory);

/// Loads a checkpoint into a module whose parameters may be cut; collective over the world. Takes
/// the folders above, merged ones of other programs, and Hugging Face's (`is_pretrained_folder`,
/// which then are read as `load_pretrained` reads them). Each goes into every layout, whatever axes
/// cut either, in whatever order, on whatever pipeline stages: a rank reads of each tensor the
/// parts that overlap its own (`RegionReader`), of safetensors files no other bytes. (Before that
/// the ranks together check the hashes of all files, each file once.) Planning takes time in
/// proportion to the tensors times the parts of one.
///
/// Strict, as `load_state`: values go into the module's tensors in place, marks stay,
/// and so do optimizers but for the one in `LoadOptions`, whose states are replaced. Types must be
/// the model's unless `LoadOptions::convert`. In the layout that saved, a run that goes on from
/// model, optimizer and random states makes the steps, bit by bit, that the run that saved made; in
/// another one to rounding. If anything does not fit on any
/// rank, every rank throws the same `Error` and no tensor of any rank has changed.
void load_parallelized(const ModelView& model, const MPU& mpu, const std::string& directory,
                       const LoadOptions& options = {});

}  // namespace oslo
