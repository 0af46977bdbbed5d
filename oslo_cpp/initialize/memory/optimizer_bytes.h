#pragma once

#include <cstdint>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace oslo {

/// What an optimizer holds beside parameters and gradients, in bytes of a rank.
struct OptimizerBytes {
  int64_t states = 0;       ///< from its first step on
  int64_t temporaries = 0;  ///< while it steps
};

/// Of LibTorch's optimizers by their class and options; null, and any other class: AdamW's.
/// `parameters`: the bytes of each parameter that it trains.
OptimizerBytes optimizer_bytes(const torch::optim::Optimizer* optimizer,
                               const std::vector<int64_t>& parameters);

}  // namespace oslo
