#pragma once

#include <string>

#include "checkpoint/state/model_state.h"
#include "mpu/grid/mpu.h"

namespace oslo {

// Which file of a parallel checkpoint holds what.

/// The file of a rank, without its extension: its coordinates on the axes that cut layers and on
/// the pipeline, "pytorch_model_tp_0_pp_0" or "pytorch_model_row_0_column_1_pp_0". Copies of the
/// model share one.
std::string part_name(const RankGrid& grid, int rank);

/// Whether the files of one copy of the model hold all of the tensor.
bool cut_inside_model(const ModelState::Tensor& tensor, const RankGrid& grid);

/// Whether this rank's file holds the tensor: of the ranks with the same part, the first does.
bool is_in_my_file(const ModelState::Tensor& tensor, const MPU& mpu);

}  // namespace oslo
