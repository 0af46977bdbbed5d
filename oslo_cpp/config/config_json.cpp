#include "oslo_cpp/config/config_json.h"

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return c10::str("the boolean ", value.get<bool>() ? "true" : "false");
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "the integer " + value.dump();
    case Json::value_t::number_float:
      return "the number " + value.dump();
    case Json::value_t::string:
      return c10::str("the string \"", printable(value.get_ref<const std::string&>()), "\"");
    case Json::value_t::array:
      return c10::str("an array of ", value.size(), value.size() == 1 ? " element" : " elements");
    case Json::value_t::object:
      return "an object";
    default:
      return "a binary value";
  }
}

std::string in_quotes(std::string_view text) {
  return "'" + printable(text) + "'";
}

const nlohmann::ordered_json& json_member(const nlohmann::ordered_json& object, const char* key) {
  static const nlohmann::ordered_json absent;
  return object.is_object() && object.contains(key) ? object.at(key) : absent;
}

}  // namespace oslo
