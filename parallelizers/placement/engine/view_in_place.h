#pragma once

#include <functional>

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// unsqueeze_, transpose_ and their like: argument 0, a placed tensor, becomes the view of itself
/// that `view` takes. What was viewed of it before, or views it, still shares its elements. A
/// parallel parameter is refused: its layout speaks of its shape.
using TakeView = std::function<at::Tensor(const at::Tensor&)>;
void view_in_place(Call& call, const TakeView& view);

}  // namespace oslo
