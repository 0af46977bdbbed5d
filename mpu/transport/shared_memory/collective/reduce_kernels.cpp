#include "mpu/transport/shared_memory/collective/reduce_kernels.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/collective/half_precision.h"

namespace oslo::shared_memory {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

// Each of these is for a number and for a vector of them (GCC's and Clang's vector extension), so
// that nothing depends on what the optimizer finds out.
struct Sum {
  template <typename V>
  static void apply(V& a, const V& b) {
    a = a + b;
  }
};
struct Product {
  template <typename V>
  static void apply(V& a, const V& b) {
    a = a * b;
  }
};
// A NaN wins, as in at::maximum.
struct Max {
  template <typename V>
  static void apply(V& a, const V& b) {
    a = (a > b) | (a != a) ? a : b;
  }
};
struct Min {
  template <typename V>
  static void apply(V& a, const V& b) {
    a = (a < b) | (a != a) ? a : b;
  }
};
struct And {
  template <typename V>
  static void apply(V& a, const V& b) {
    a = a & b;
  }
};
struct Or {
  template <typename V>
  static void apply(V& a, const V& b) {
    a = a | b;
  }
};
struct Xor {
  template <typename V>
  static void apply(V& a, const V& b) {
    a = a ^ b;
  }
};

constexpr size_t kVector = 32;
/// Elements that are reduced at a time where results have to wait somewhere; they stay in the
/// cache.
constexpr size_t kBlock = 1024;

template <typename T, typename Op>
[[gnu::always_inline]] inline void combine_inlined(T* out, const T* a, const T* b,
                                                   size_t elements) {
  using Vector [[gnu::vector_size(kVector), gnu::aligned(1), gnu::may_alias]] = T;
  constexpr size_t step = kVector / sizeof(T);
  size_t i = 0;
  for (; i + step <= elements; i += step) {
    using Value [[gnu::vector_size(kVector)]] = T;
    Value result = *reinterpret_cast<const Vector*>(a + i);
    const Value other = *reinterpret_cast<const Vector*>(b + i);
    Op::apply(result, other);
    *reinterpret_cast<Vector*>(out + i) = result;
  }
  for (; i < elements; ++i) {
    T result = a[i];
    Op::apply(result, b[i]);
    out[i] = result;
  }
}

template <typename T, typename Op>
void combine_plain(T* out, const T* a, const T* b, size_t elements) {
  combine_inlined<T, Op>(out, a, b, elements);
}

#if defined(__x86_64__)
template <typename T, typename Op>
__attribute__((target("avx2"))) void combine_wide(T* out, const T* a, const T* b, size_t elements) {
  combine_inlined<T, Op>(out, a, b, elements);
}
#endif

template <typename T, typename Op>
void combine(T* out, const T* a, const T* b, size_t elements) {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) return combine_wide<T, Op>(out, a, b, elements);
#endif
  combine_plain<T, Op>(out, a, b, elements);
}

template <typename T>
void divide(T* values, int count, size_t elements) {
  using Vector [[gnu::vector_size(kVector), gnu::aligned(1), gnu::may_alias]] = T;
  constexpr size_t step = kVector / sizeof(T);
  size_t i = 0;
  if constexpr (std::is_floating_point_v<T>) {
    const T by = static_cast<T>(count);
    for (; i + step <= elements; i += step) *reinterpret_cast<Vector*>(values + i) /= by;
    for (; i < elements; ++i) values[i] /= by;
  } else {
    for (; i < elements; ++i) values[i] = static_cast<T>(static_cast<int64_t>(values[i]) / count);
  }
}

template <typename T, typename Op, bool average>
void reduce(void* out, const void* const* inputs, int count, size_t elements) {
  const auto input = [&](int rank) { return static_cast<const T*>(inputs[rank]); };
  std::array<T, kBlock> block;
  for (size_t begin = 0; begin < elements; begin += kBlock) {
    const size_t length = std::min(kBlock, elements - begin);
    T* const result = static_cast<T*>(out) + begin;
    // `out` may be one of the inputs: it is written when all of them have been read.
    const T* so_far = input(0) + begin;
    for (int rank = 1; rank < count; ++rank) {
      T* const to = rank + 1 == count ? result : block.data();
      combine<T, Op>(to, so_far, input(rank) + begin, length);
      so_far = to;
    }
    if (count == 1 && result != so_far) std::copy_n(so_far, length, result);
    if (average) divide(result, count, length);
  }
}

template <typename T, typename Op, bool average>
void reduce_in_float(void* out, const void* const* inputs, int count, size_t elements) {
  std::array<float, kBlock> sum, next;
  for (size_t begin = 0; begin < elements; begin += kBlock) {
    const size_t length = std::min(kBlock, elements - begin);
    to_float(static_cast<const T*>(inputs[0]) + begin, sum.data(), length);
    for (int rank = 1; rank < count; ++rank) {
      to_float(static_cast<const T*>(inputs[rank]) + begin, next.data(), length);
      combine<float, Op>(sum.data(), sum.data(), next.data(), length);
    }
    if (average) divide(sum.data(), count, length);
    from_float(sum.data(), static_cast<T*>(out) + begin, length);
  }
}

template <typename T>
ReduceKernel arithmetic(RedOp op) {
  switch (op) {
    case RedOp::SUM:
    case RedOp::PREMUL_SUM:
      return reduce<T, Sum, false>;
    case RedOp::AVG:
      return reduce<T, Sum, true>;
    case RedOp::PRODUCT:
      return reduce<T, Product, false>;
    case RedOp::MIN:
      return reduce<T, Min, false>;
    case RedOp::MAX:
      return reduce<T, Max, false>;
    default:
      return nullptr;
  }
}

template <typename T>
ReduceKernel integral(RedOp op) {
  // Sums that overflow wrap around, as they do in tensors.
  using Unsigned = std::make_unsigned_t<T>;
  switch (op) {
    case RedOp::SUM:
    case RedOp::PREMUL_SUM:
      return reduce<Unsigned, Sum, false>;
    case RedOp::PRODUCT:
      return reduce<Unsigned, Product, false>;
    case RedOp::BAND:
      return reduce<Unsigned, And, false>;
    case RedOp::BOR:
      return reduce<Unsigned, Or, false>;
    case RedOp::BXOR:
      return reduce<Unsigned, Xor, false>;
    default:
      return arithmetic<T>(op);
  }
}

template <typename T>
ReduceKernel in_float(RedOp op) {
  switch (op) {
    case RedOp::SUM:
    case RedOp::PREMUL_SUM:
      return reduce_in_float<T, Sum, false>;
    case RedOp::AVG:
      return reduce_in_float<T, Sum, true>;
    case RedOp::PRODUCT:
      return reduce_in_float<T, Product, false>;
    case RedOp::MIN:
      return reduce_in_float<T, Min, false>;
    case RedOp::MAX:
      return reduce_in_float<T, Max, false>;
    default:
      return nullptr;
  }
}

ReduceKernel logical(RedOp op) {
  switch (op) {
    case RedOp::SUM:
    case RedOp::MAX:
    case RedOp::BOR:
      return reduce<uint8_t, Or, false>;
    case RedOp::PRODUCT:
    case RedOp::MIN:
    case RedOp::BAND:
      return reduce<uint8_t, And, false>;
    case RedOp::BXOR:
      return reduce<uint8_t, Xor, false>;
    default:
      return nullptr;
  }
}

ReduceKernel complex(ReduceKernel real, RedOp op) {
  return op == RedOp::SUM || op == RedOp::AVG || op == RedOp::PREMUL_SUM ? real : nullptr;
}

ReduceKernel find(c10::ScalarType type, RedOp op) {
  switch (type) {
    case c10::ScalarType::Float:
      return arithmetic<float>(op);
    case c10::ScalarType::Double:
      return arithmetic<double>(op);
    case c10::ScalarType::Half:
      return in_float<c10::Half>(op);
    case c10::ScalarType::BFloat16:
      return in_float<c10::BFloat16>(op);
    case c10::ScalarType::Char:
      return integral<int8_t>(op);
    case c10::ScalarType::Byte:
      return integral<uint8_t>(op);
    case c10::ScalarType::Short:
      return integral<int16_t>(op);
    case c10::ScalarType::Int:
      return integral<int32_t>(op);
    case c10::ScalarType::Long:
      return integral<int64_t>(op);
    case c10::ScalarType::Bool:
      return logical(op);
    case c10::ScalarType::ComplexFloat:
      return complex(arithmetic<float>(op), op);
    case c10::ScalarType::ComplexDouble:
      return complex(arithmetic<double>(op), op);
    default:
      return nullptr;
  }
}

}  // namespace

const char* name_of(RedOp op) {
  constexpr std::array<const char*, 9> names = {"sum", "average", "product", "min",           "max",
                                                "and", "or",      "xor",     "multiplied sum"};
  return op < names.size() ? names[op] : "unknown";
}

ReduceKernel reduce_kernel(c10::ScalarType type, RedOp op) {
  const ReduceKernel kernel = find(type, op);
  OSLO_CHECK(kernel != nullptr, "the ", name_of(op), " of tensors of ", type,
             " means nothing here");
  return kernel;
}

}  // namespace oslo::shared_memory
