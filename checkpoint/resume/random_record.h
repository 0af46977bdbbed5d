#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/formats/tensors/state_dict.h"
#include "checkpoint/state/model_state.h"
#include "mpu/grid/mpu.h"

namespace oslo {

/// The file that holds where every rank's random generators are, as a byte tensor for each:
/// "3/cpu" is rank 3's default generator, "3/replicated" and "3/sharded" are its `RandomStreams`,
/// "3/cuda" is the default generator of its model's GPU, where it has one.
inline constexpr char kRandomName[] = "random_states.safetensors";

/// Where this rank's generators are now, as text for rank 0.
std::string random_states(const ModelState& state, const MPU& mpu);

/// What the file holds, of every rank's text in the order of the ranks.
StateDict join_random_states(const std::vector<std::string>& texts);

/// States for this rank's generators; nothing has changed before `commit`.
///
/// In the grid that saved, each rank gets its own. In another one it gets those of the first rank
/// that had its place among the data ranks (counted round where there were fewer), and keeps its
/// own sharded stream, which belonged to a cut that is no more.
class RandomLoad {
 public:
  /// Throws `Error` where the checkpoint has no such file, or one that does not fit.
  RandomLoad(const ModelState& state, const MPU& mpu, const CheckpointFolder& folder);
  void commit();

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace oslo
