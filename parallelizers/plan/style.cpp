#include "parallelizers/plan/style.h"

#include <cctype>
#include <set>
#include <sstream>

#include "mpu/error.h"

namespace oslo {

std::string to_string(Style style) {
  switch (style) {
    case Style::column:
      return "column";
    case Style::row:
      return "row";
    case Style::vocab:
      return "vocab";
    case Style::shard:
      return "shard";
    default:
      return "replicate";
  }
}

std::string StyleText::name() const {
  const std::string text = oslo::to_string(style);
  return style == Style::shard ? text + "(" + std::to_string(dim) + ")" : text;
}

StyleText StyleText::parse(const std::string& text, const std::string& where) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  StyleText parsed;
  bool known = false;
  for (const Style style : {Style::replicate, Style::column, Style::row, Style::vocab}) {
    if (word != oslo::to_string(style)) continue;
    parsed.style = style;
    known = true;
  }
  if (word.size() == 8 && word.starts_with("shard(") && word[7] == ')' && isdigit(word[6]) != 0) {
    parsed.style = Style::shard;
    parsed.dim = word[6] - '0';
    known = true;
  }
  OSLO_CHECK(known, where,
             ": expected one of column, row, vocab, replicate, shard(dimension); column, row and "
             "shard optionally with blocks=N and unit=N; seen \"",
             text, "\"");
  std::set<std::string> seen;
  while (words >> word) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string digits = equals == std::string::npos ? "" : word.substr(equals + 1);
    const bool number = !digits.empty() && digits.size() < 10 &&
                        digits.find_first_not_of("0123456789") == std::string::npos;
    OSLO_CHECK(
        parsed.divides() && number && std::stoll(digits) > 0 && (key == "blocks" || key == "unit"),
        where, ": cannot read \"", word, "\" in \"", text,
        "\"; column, row and shard take blocks=N and unit=N with N at least 1");
    OSLO_CHECK(seen.insert(key).second, where, ": \"", text, "\" gives ", key, " twice");
    (key == "blocks" ? parsed.blocks : parsed.unit) = std::stoll(digits);
  }
  return parsed;
}

namespace {

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

AxisStyles parse_axis_styles(const std::string& text, const std::string& where) {
  if (text.find_first_of(":;") == std::string::npos) return {{"", StyleText::parse(text, where)}};
  AxisStyles styles;
  std::set<std::string> seen;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ';');) {
    const size_t colon = part.find(':');
    const std::string axis = trimmed(part.substr(0, colon));
    OSLO_CHECK(colon != std::string::npos && !axis.empty(), where, ": cannot read \"", part,
               "\" in \"", text,
               "\"; styles of several axes are written \"row: shard(1); column: shard(0)\"");
    OSLO_CHECK(seen.insert(axis).second, where, ": \"", text, "\" gives the axis ", axis, " twice");
    styles.emplace_back(axis, StyleText::parse(part.substr(colon + 1), where));
  }
  return styles;
}

}  // namespace oslo
