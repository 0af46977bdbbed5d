#pragma once

namespace oslo {

/// How a weight of N output and K input features lies.
enum class WeightForm {
  output_first,  ///< (N, K): torch::nn::Linear
  input_first,   ///< (K, N): the second operand of matmul and addmm
};

}  // namespace oslo
