#include "mpu/transport/shared_memory/collective/half_precision.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace oslo::shared_memory {
namespace {

#if defined(__x86_64__)
// The compiler may not assume these instructions, so that the library runs on every x86-64.
bool has_wide_conversions() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}

__attribute__((target("avx2,f16c"))) size_t widen(const c10::Half* from, float* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(packed));
  }
  return i;
}

__attribute__((target("avx2,f16c"))) size_t narrow(const float* from, c10::Half* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i packed = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), packed);
  }
  return i;
}

__attribute__((target("avx2"))) size_t widen(const c10::BFloat16* from, float* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), bits);
  }
  return i;
}

__attribute__((target("avx2"))) size_t narrow(const float* from, c10::BFloat16* to, size_t count) {
  const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
  const __m256i not_a_number = _mm256_set1_epi32(0x7fc0);
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 values = _mm256_loadu_ps(from + i);
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(half, odd)), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, not_a_number, nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(result, result), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_castsi256_si128(packed));
  }
  return i;
}
#else
bool has_wide_conversions() {
  return false;
}
template <typename From, typename To>
size_t widen(const From*, To*, size_t) {
  return 0;
}
template <typename From, typename To>
size_t narrow(const From*, To*, size_t) {
  return 0;
}
#endif

template <typename From>
void all_to_float(const From* from, float* to, size_t elements) {
  size_t i = has_wide_conversions() ? widen(from, to, elements) : 0;
  for (; i < elements; ++i) to[i] = static_cast<float>(from[i]);
}

template <typename To>
void all_from_float(const float* from, To* to, size_t elements) {
  size_t i = has_wide_conversions() ? narrow(from, to, elements) : 0;
  for (; i < elements; ++i) to[i] = static_cast<To>(from[i]);
}

}  // namespace

void to_float(const c10::Half* from, float* to, size_t elements) {
  all_to_float(from, to, elements);
}
void to_float(const c10::BFloat16* from, float* to, size_t elements) {
  all_to_float(from, to, elements);
}
void from_float(const float* from, c10::Half* to, size_t elements) {
  all_from_float(from, to, elements);
}
void from_float(const float* from, c10::BFloat16* to, size_t elements) {
  all_from_float(from, to, elements);
}

}  // namespace oslo::shared_memory
