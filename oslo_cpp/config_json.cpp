#include "oslo_cpp/config_json.h"

#include <set>
#include <vector>

#include "mpu/error.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongestQuote = 100;

std::string cut(std::string_view text) {
  if (text.size() <= kLongestQuote) {
    return std::string(text);
  }
  return std::string(text.substr(0, kLongestQuote)) + "...";
}

// Follows the parser's events; the JSON library itself would let the last of two equal keys win.
class DuplicateKeys {
 public:
  bool operator()(Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        levels_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        levels_.pop_back();
        break;
      case Json::parse_event_t::key:
        add(parsed.get_ref<const std::string&>());
        break;
      case Json::parse_event_t::value:
        break;
    }
    return true;
  }

 private:
  struct Level {
    std::set<std::string> seen;
    std::string current;
  };

  void add(const std::string& key) {
    Level& level = levels_.back();
    level.current = key;
    if (level.seen.insert(key).second) {
      return;
    }
    std::string path;
    for (const Level& each : levels_) {
      path += (path.empty() || each.current.empty() ? "" : ".") + each.current;
    }
    fail("duplicate key ", in_quotes(path), ": which value is meant? keep one of them");
  }

  std::vector<Level> levels_;
};

}  // namespace

Json read_json(const std::string& text) {
  DuplicateKeys duplicates;
  auto follow = [&](int, Json::parse_event_t event, Json& parsed) {
    return duplicates(event, parsed);
  };
  return Json::parse(text, follow, /*allow_exceptions=*/true, /*ignore_comments=*/true);
}

std::string describe(const nlohmann::json::parse_error& error) {
  std::string text = error.what();
  const std::string before = "parse error at ";
  size_t start = text.find(before);
  return start == std::string::npos ? text : text.substr(start + before.size());
}

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
      return c10::str("the string \"", cut(value.get_ref<const std::string&>()), "\"");
    case Json::value_t::array:
      return c10::str("an array of ", value.size(), value.size() == 1 ? " element" : " elements");
    case Json::value_t::object:
      return "an object";
    default:
      return "a binary value";
  }
}

std::string in_quotes(std::string_view text) {
  return "'" + cut(text) + "'";
}

}  // namespace oslo
