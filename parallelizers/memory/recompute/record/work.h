#pragma once

#include "parallelizers/memory/recompute/record/segment.h"

namespace oslo::recompute {

/// What it takes to run a segment's needed operators again, in bytes that a processor moves while
/// it does as much: those of all results, and an operation of a product, a convolution or attention
/// for a sixteenth of a byte. By global sizes, so that all ranks find the same. Of a segment that
/// `weighs` its operators.
double work_of(const Segment& segment);

}  // namespace oslo::recompute
