#pragma once

#include "tests/support/operator_examples/example.h"
#include "tests/support/operator_examples/images.h"
#include "tests/support/operator_examples/indexing.h"
#include "tests/support/operator_examples/normalization.h"
#include "tests/support/operator_examples/others.h"
#include "tests/support/operator_examples/products.h"
#include "tests/support/operator_examples/reductions.h"
#include "tests/support/operator_examples/shapes.h"

namespace operator_examples {

/// All families, with the same numbers whenever it is called. Of another type than double only
/// those operators that one device knows for it; nothing but that all ranks get through is asked.
inline std::vector<Family> families(at::ScalarType type = at::kDouble) {
  number_type() = type;
  at::manual_seed(7);
  return {
      products(),          shapes(), lookups(),      writes(),     reductions(),  scans(),
      normalizations(),    losses(), convolutions(), pooling(),    images(),      recurrent(),
      spectral(),          made(),   pointwise(),    decomposed(), loss_halves(), norm_kernels(),
      pointwise_kernels(), unruled()};
}

}  // namespace operator_examples
