#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstddef>

namespace oslo::shared_memory {

// Conversions of whole rows, exact one way and rounded to nearest even the other.
void to_float(const c10::Half* from, float* to, size_t elements);
void to_float(const c10::BFloat16* from, float* to, size_t elements);
void from_float(const float* from, c10::Half* to, size_t elements);
void from_float(const float* from, c10::BFloat16* to, size_t elements);

}  // namespace oslo::shared_memory
