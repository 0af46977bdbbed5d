#include "mpu/base/environment.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "mpu/base/error.h"

namespace oslo {
namespace {

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kVariables); ++i) {
    if (kVariables[i].variable != static_cast<Variable>(i)) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

std::string VariableRow::values_text() const {
  return choices[0] == nullptr ? values : c10::str(choices[0], " or ", choices[1]);
}

std::optional<std::string> read_variable(Variable variable) {
  const VariableRow& row = row_of(variable);
  const char* const text = std::getenv(row.name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const bool known = row.choices[0] == nullptr ||
                     std::any_of(row.choices.begin(), row.choices.end(), [&](const char* choice) {
                       return std::string_view(text) == choice;
                     });
  OSLO_CHECK_AS(config, known, row.name, " is '", text, "'; set it to ", row.values_text(),
                ", or unset it");
  return text;
}

std::optional<bool> read_switch(Variable variable) {
  const std::optional<std::string> said = read_variable(variable);
  if (!said) return std::nullopt;
  return *said == "1";
}

}  // namespace oslo
