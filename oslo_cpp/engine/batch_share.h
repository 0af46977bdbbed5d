#pragma once

namespace oslo {

/// Of the batch that a training loop is at: this rank's rows times the number of data ranks, over
/// the rows of all of them. Data ranks average their gradients: a mean over rows times this is the
/// mean over all rows. The loader that divides the batch writes it, the engine reads it.
struct BatchShare {
  double weight = 1;
};

}  // namespace oslo
