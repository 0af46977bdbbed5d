#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "checkpoint/formats/tensor_file.h"
#include "checkpoint/regions/region.h"

namespace oslo {

/// Copies the elements of `overlap` of the tensor `name` of a file into a place's own tensor, of
/// the same type. `transposed`: the file has the transpose of what the overlap speaks of. Of a
/// safetensors file the rows are read that the overlap has elements of, in blocks of at most a
/// megabyte, or one row of the last dimensions where that is longer; of a .bin the tensor's
/// storage.
void copy_from_file(const TensorFile& file, const std::string& name, const Overlap& overlap,
                    bool transposed, const at::Tensor& into);

}  // namespace oslo
