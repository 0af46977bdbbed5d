#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// Throws where a function of torch::nn::init that computes from the sizes of what it is given
/// (xavier_uniform_, kaiming_normal_, orthogonal_, ...), or a layer's reset_parameters, is about to
/// fill a parameter that is cut over ranks: the sizes that it read were those of this rank's part.
/// Where they do not matter (the fan-in of a weight cut by rows, normal_ and uniform_ by hand,
/// which draw what one device draws) nothing happens. Which function it is, the calls in progress
/// tell: sizes are read without an operator. To ask them takes more than a millisecond. For
/// operators through which these functions reach a parameter; all ranks find the same.
void refuse_initializers_of_parts(const at::Tensor& target);

/// Throws where a write of a plain tensor of a part's sizes, or of one number, to a parameter that
/// is cut comes of C++'s `parameter.index_put_({Slice(0, k)}, values)`: LibTorch compares k with
/// this rank's size before any operator runs, and takes the part for all that is written. To ask
/// takes some microseconds.
void refuse_index_put_of_parts(const at::Tensor& target);

/// Throws where LBFGS asks for a new tensor in place of the gradient of a parameter that other
/// pipeline stages hold, to join all gradients into one. To ask takes more than a millisecond.
void refuse_joined_gradients(const at::Tensor& parameter);

/// Whether an embedding's reset_parameters is filling its table, which is cut over ranks and has a
/// padding row: LibTorch's layer does not know of that row any more, and would leave it filled.
bool resets_padded_table(const at::Tensor& target);

}  // namespace oslo
