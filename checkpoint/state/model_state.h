#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// What a checkpoint holds of a model: its parameters and buffers by the names of the
/// unparallelized model, which are the ones that LibTorch prints, in the order of registration
/// (parameters, then buffers). A tensor with several names (tied weights) is there once.
///
/// Where a layer's member and its registration differ, the member counts, because that is what the
/// model computes with (`ParameterSlot`).
struct ModelState {
  struct Tensor {
    std::string name;            ///< the first of its names
    at::Tensor local;            ///< the module's own tensor: this rank's part, or all of it
    LayoutPtr layout;            ///< how it is cut; null where this rank has all of it
    LayoutPtr state_layout;      ///< the same of what an optimizer keeps of it
    std::vector<int64_t> shape;  ///< global
    StageSet stages;             ///< the pipeline stages that hold it; none: every rank does
    bool here = true;            ///< whether this rank does
  };

  /// Throws `Error` for a tensor whose mark is damaged (`mark_of`).
  explicit ModelState(const ModelView& model);

  std::vector<Tensor> tensors;
  /// Every name with the number of its tensor.
  std::vector<std::pair<std::string, size_t>> names;

  /// Names, dtypes, global shapes and cut dimensions as text: equal on ranks whose models are.
  std::string describe() const;
};

/// One tensor of a model, whole or marked, as `ModelState` lists it. Throws `Error` for one whose
/// mark is damaged (`mark_of`).
ModelState::Tensor state_entry(const std::string& name, const at::Tensor& tensor);

}  // namespace oslo
