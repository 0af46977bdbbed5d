#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

namespace oslo {

/// What Python's `torch.save` calls a dtype: `torch.<storage>` is the class of its typed storages
/// (empty for the dtypes that came after those, which travel as untyped bytes), `torch.<name>` the
/// dtype.
struct TorchDtype {
  c10::ScalarType dtype;
  std::string_view storage;
  std::string_view name;
};

inline constexpr TorchDtype kTorchDtypes[] = {
    {c10::ScalarType::Double, "DoubleStorage", "float64"},
    {c10::ScalarType::Float, "FloatStorage", "float32"},
    {c10::ScalarType::Half, "HalfStorage", "float16"},
    {c10::ScalarType::BFloat16, "BFloat16Storage", "bfloat16"},
    {c10::ScalarType::Long, "LongStorage", "int64"},
    {c10::ScalarType::Int, "IntStorage", "int32"},
    {c10::ScalarType::Short, "ShortStorage", "int16"},
    {c10::ScalarType::Char, "CharStorage", "int8"},
    {c10::ScalarType::Byte, "ByteStorage", "uint8"},
    {c10::ScalarType::Bool, "BoolStorage", "bool"},
    {c10::ScalarType::ComplexDouble, "ComplexDoubleStorage", "complex128"},
    {c10::ScalarType::ComplexFloat, "ComplexFloatStorage", "complex64"},
    {c10::ScalarType::UInt64, "", "uint64"},
    {c10::ScalarType::UInt32, "", "uint32"},
    {c10::ScalarType::UInt16, "", "uint16"},
    {c10::ScalarType::Float8_e4m3fn, "", "float8_e4m3fn"},
    {c10::ScalarType::Float8_e5m2, "", "float8_e5m2"},
    {c10::ScalarType::Float8_e4m3fnuz, "", "float8_e4m3fnuz"},
    {c10::ScalarType::Float8_e5m2fnuz, "", "float8_e5m2fnuz"},
    {c10::ScalarType::Float8_e8m0fnu, "", "float8_e8m0fnu"},
};

/// The row of a dtype, or null where `torch.save` has no word for it (quantized ones).
inline const TorchDtype* find_torch_dtype(c10::ScalarType dtype) {
  for (const TorchDtype& known : kTorchDtypes) {
    if (known.dtype == dtype) {
      return &known;
    }
  }
  return nullptr;
}

}  // namespace oslo
