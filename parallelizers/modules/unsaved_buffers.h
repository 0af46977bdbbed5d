#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// The buffers that the view leaves out, since checkpoints do (Python's `persistent=False`). They
/// stay on every rank and stage; a forward may write them all the same.
std::vector<at::Tensor> unsaved_buffers(const ModelView& model);

/// Gives a buffer's memory the content that it had. An expanded one is left alone: it cannot be
/// written, nor was it. (Versions do not tell: batch norm writes its statistics without counting.)
void put_back(const at::Tensor& memory, const at::Tensor& content);

}  // namespace oslo
