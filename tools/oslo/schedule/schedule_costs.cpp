#include "tools/oslo/schedule/schedule_costs.h"

#include <charconv>
#include <cmath>
#include <sstream>
#include <vector>

#include "mpu/base/error.h"

namespace oslo::tool {
namespace {

double parse_number(const std::string& word, const std::string& part) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool whole = error == std::errc() && end == word.data() + word.size();
  OSLO_CHECK(whole && std::isfinite(value) && value >= 0, "--costs: \"", part,
             "\": a cost is a number of at least 0");
  return value;
}

std::vector<double> parse_numbers(const std::string& value, const std::string& part, int stages) {
  std::vector<double> numbers;
  std::istringstream words(value);
  for (std::string word; std::getline(words, word, '/');) {
    numbers.push_back(parse_number(word, part));
  }
  OSLO_CHECK(!numbers.empty(), "--costs: \"", part, "\": a cost is a number of at least 0");
  if (numbers.size() == 1) numbers.resize(stages, numbers[0]);
  OSLO_CHECK(static_cast<int>(numbers.size()) == stages, "--costs: \"", part, "\" has ",
             numbers.size(), " numbers for ", stages, " stages");
  return numbers;
}

}  // namespace

pipeline::Costs parse_costs(const std::string& text, int stages) {
  pipeline::Costs costs = pipeline::Costs::unit(stages);
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (name == "hop") {
      costs.hop = parse_number(value, part);
      continue;
    }
    std::vector<double>* const passes = name == "F"   ? &costs.forward
                                        : name == "I" ? &costs.input
                                        : name == "W" ? &costs.weight
                                                      : nullptr;
    OSLO_CHECK(passes != nullptr, "--costs: \"", part,
               "\" is unknown; write F=1,I=1.3,W=0.7,hop=0.25 (a whole backward costs I + W)");
    *passes = parse_numbers(value, part, stages);
  }
  return costs;
}

}  // namespace oslo::tool
