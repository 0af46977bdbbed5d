#include "tests/reader_fuzz_test/fuzzer/json_mutation.h"

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace oslo::fuzz {
namespace {

using Json = nlohmann::json;

size_t below(std::mt19937& dice, size_t count) {
  return dice() % count;
}

/// Without recursion: parsed documents may be deep.
std::vector<Json*> values_of(Json& document) {
  std::vector<Json*> all{&document};
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]->is_structured()) continue;
    for (Json& each : *all[i]) all.push_back(&each);
  }
  return all;
}

Json stumbling_block(std::mt19937& dice) {
  static const std::vector<Json> blocks = {nullptr,
                                           true,
                                           0,
                                           1,
                                           -1,
                                           7,
                                           INT64_MAX,
                                           INT64_MIN,
                                           UINT64_MAX,
                                           int64_t{1} << 40,
                                           0.5,
                                           1e308,
                                           "",
                                           "x",
                                           std::string(1, '\0'),
                                           "../../x",
                                           Json::array(),
                                           Json::object(),
                                           {{"as_int", -1}},
                                           {{"as_none", true}},
                                           {{"as_tensor", {{"name", "linear"}}}}};
  return blocks[below(dice, blocks.size())];
}

}  // namespace

void mutate(Json& document, std::mt19937& dice) {
  const std::vector<Json*> values = values_of(document);
  Json& value = *values[below(dice, values.size())];
  switch (below(dice, 6)) {
    case 0:
      value = stumbling_block(dice);
      break;
    case 1: {
      Json other = *values[below(dice, values.size())];
      value = std::move(other);
      break;
    }
    case 2:
      if (value.is_structured() && !value.empty()) {
        value.erase(std::next(value.begin(), static_cast<int64_t>(below(dice, value.size()))));
      }
      break;
    case 3:
      if (value.is_array()) value.push_back(value.empty() ? Json(0) : value[0]);
      if (value.is_object() && !value.empty()) {
        const auto from = std::next(value.begin(), static_cast<int64_t>(below(dice, value.size())));
        Json moved = *from;
        value.erase(from);
        value["moved"] = std::move(moved);
      }
      break;
    case 4:
      if (value.is_number_integer()) {
        value = value.get<int64_t>() ^ (int64_t{1} << below(dice, 63));
      }
      if (value.is_string()) value = value.get<std::string>() + "0";
      break;
    default:
      if (value.is_array() && value.size() > 1) {
        std::swap(value[below(dice, value.size())], value[below(dice, value.size())]);
      }
  }
}

}  // namespace oslo::fuzz
