#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "parallelizers/placement/layout/layout.h"

namespace torch::nn {
class Module;
}

namespace oslo {

/// What a checkpoint holds of a module: its parameters and buffers by the names of the
/// unparallelized model, which are the ones that LibTorch prints, in the order of registration
/// (parameters, then buffers). A tensor with several names (tied weights) is there once.
///
/// `lm_head->weight = wte->weight` changes only the member of lm_head, not its registration: where
/// the two differ in a layer of LibTorch, the member counts, because that is what the model
/// computes with (`parameter_in_use`).
struct ModelState {
  struct Tensor {
    std::string name;            ///< the first of its names
    at::Tensor local;            ///< the module's own tensor: this rank's part, or all of it
    LayoutPtr layout;            ///< how it is cut; null where this rank has all of it
    std::vector<int64_t> shape;  ///< global
  };

  /// Throws `Error` for a tensor whose mark is damaged (`mark_of`).
  explicit ModelState(const torch::nn::Module& module);

  std::vector<Tensor> tensors;
  /// Every name with the number of its tensor.
  std::vector<std::pair<std::string, size_t>> names;

  /// Names, dtypes, global shapes and cut dimensions as text: equal on ranks whose models are.
  std::string describe() const;
};

/// The part's values without mark and history, sharing the storage.
at::Tensor plain_values(const at::Tensor& tensor);

}  // namespace oslo
