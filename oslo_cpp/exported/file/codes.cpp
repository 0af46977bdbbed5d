#include "oslo_cpp/exported/file/codes.h"

#include <c10/util/Exception.h>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo::exported {
namespace {

using c10::ScalarType;

struct TypeCode {
  int64_t code;
  ScalarType type;
};

constexpr TypeCode kTypeCodes[] = {
    {1, ScalarType::Byte},
    {2, ScalarType::Char},
    {3, ScalarType::Short},
    {4, ScalarType::Int},
    {5, ScalarType::Long},
    {6, ScalarType::Half},
    {7, ScalarType::Float},
    {8, ScalarType::Double},
    {9, ScalarType::ComplexHalf},
    {10, ScalarType::ComplexFloat},
    {11, ScalarType::ComplexDouble},
    {12, ScalarType::Bool},
    {13, ScalarType::BFloat16},
    {28, ScalarType::UInt16},
    {29, ScalarType::Float8_e4m3fn},
    {30, ScalarType::Float8_e5m2},
    {31, ScalarType::Float8_e4m3fnuz},
    {32, ScalarType::Float8_e5m2fnuz},
};

}  // namespace

ScalarType scalar_type_of(const Document& code) {
  const int64_t number = code.integer();
  for (const TypeCode& known : kTypeCodes) {
    if (known.code == number) return known.type;
  }
  fail_as(ErrorKind::file, code.where(), ": there is no type of elements with the number ", number);
}

c10::Layout layout_of(const Document& code) {
  constexpr int64_t kStrided = 7;
  const int64_t number = code.integer();
  OSLO_CHECK_AS(file, number == kStrided, code.where(), ": the layout with the number ", number,
                " is not there: only strided tensors (7) are");
  return c10::Layout::Strided;
}

c10::MemoryFormat memory_format_of(const Document& code) {
  switch (const int64_t number = code.integer()) {
    case 1:
      return c10::MemoryFormat::Contiguous;
    case 2:
      return c10::MemoryFormat::ChannelsLast;
    case 3:
      return c10::MemoryFormat::ChannelsLast3d;
    case 4:
      return c10::MemoryFormat::Preserve;
    default:
      fail_as(ErrorKind::file, code.where(), ": there is no memory format with the number ",
              number);
  }
}

c10::Device device_of(const Document& device) {
  const std::string& type = device.member("type").text();
  const auto index = device.find("index");
  try {
    const std::string number = index ? ":" + std::to_string(index->integer()) : "";
    return c10::Device(type + number);
  } catch (const c10::Error&) {
    fail_as(ErrorKind::file, device.where(), ": '", printable(type), "' is no device");
  }
}

}  // namespace oslo::exported
