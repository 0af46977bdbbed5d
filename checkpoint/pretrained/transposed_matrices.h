#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/index/checkpoint_index.h"
#include "checkpoint/pretrained/family.h"
#include "checkpoint/state/model_state.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Which matrices of a model lie in its family's files as their transposes
/// (`PretrainedFamily::transposed`). A model in C++ has them as [out, in]; one that came from
/// Python (an exported program, a script) has them as Python has: nothing of it is transposed.
///
/// A matrix and its bias tell by their sizes. Where they do not (a square one), it lies as the
/// others of the model do; where none tells, or they lie in both ways, `lies_as_in_python` decides:
/// the names of the matrices of Python modules that are no `Linear`.
std::set<std::string> transposed_matrices(const PretrainedFamily& family,
                                          const std::map<std::string, std::vector<int64_t>>& shapes,
                                          const std::set<std::string>& lies_as_in_python = {});

/// The shapes of a checkpoint's model, without an optimizer's states.
std::map<std::string, std::vector<int64_t>> shapes_of(const CheckpointIndex& index);

/// The same of a model; under all names of its tensors.
std::set<std::string> transposed_matrices(const PretrainedFamily& family, const ModelView& model,
                                          const ModelState& state);

}  // namespace oslo
