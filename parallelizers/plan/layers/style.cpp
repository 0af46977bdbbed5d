#include "parallelizers/plan/layers/style.h"

#include <cctype>
#include <optional>
#include <set>
#include <sstream>

#include "mpu/base/error.h"

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

std::string use_text(const AxisUse& use) {
  std::string text;
  if (use.result == AxisUse::Result::scatter) text += " scatter=" + std::to_string(use.dim);
  if (use.result == AxisUse::Result::split) text += " split=" + std::to_string(use.dim);
  if (use.joins()) text += " joined";
  if (use.result == AxisUse::Result::join_scatter) text += " scatter=" + std::to_string(use.dim);
  if (use.input_dim) {
    text += (use.input_head_tail ? " head_tail=" : " input=") + std::to_string(*use.input_dim);
  }
  return text;
}

namespace {

/// "16", "-2"; at most nine digits.
std::optional<int64_t> number_in(const std::string& text) {
  const std::string digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.empty() || digits.size() > 9) return std::nullopt;
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return std::stoll(text);
}

/// Reads "scatter=-2" and the like; false where `key` is no such word.
bool read_use(const std::string& key, int64_t dim, LayerStyle& parsed) {
  if (key == "scatter" || key == "split") {
    parsed.use.result = key == "split" ? AxisUse::Result::split : AxisUse::Result::scatter;
    parsed.use.dim = dim;
  } else if (key == "input" || key == "head_tail") {
    parsed.use.input_dim = dim;
    parsed.use.input_head_tail = key == "head_tail";
  } else {
    return false;
  }
  return true;
}

/// Whether results of the style are sums over ranks, or whole, on the axis that the word speaks of.
void check_use_word(const std::string& key, const LayerStyle& parsed, const std::string& text,
                    const std::string& where) {
  const Style style = parsed.style;
  const bool sums = style == Style::row || style == Style::vocab;
  OSLO_CHECK_AS(config, key != "scatter" || sums, where, ": \"", text,
                "\": scatter=D gives each rank its part "
                "of a sum over the ranks, which results of row and of vocab are, and not of ",
                to_string(style));
  OSLO_CHECK_AS(
      config, key != "split" || style == Style::replicate, where, ": \"", text,
      "\": split=D gives each rank its part of a whole result, as replicate gives; of row "
      "and vocab say scatter=D; that of ",
      to_string(style), " is ", sums ? "a sum" : "cut already");
  const bool of_input = key == "input" || key == "head_tail";
  OSLO_CHECK_AS(config, !of_input || style == Style::replicate, where, ": \"", text, "\": ", key,
                "=D cuts the input over the ranks over which ", to_string(style),
                " cuts the weight; use it with replicate");
}

}  // namespace

std::string LayerStyle::name() const {
  const std::string text = oslo::to_string(style);
  return style == Style::shard ? text + "(" + std::to_string(dim) + ")" : text;
}

LayerStyle LayerStyle::parse(const std::string& text, const std::string& where) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  LayerStyle parsed;
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
  OSLO_CHECK_AS(
      config, known, where,
      ": expected one of column, row, vocab, replicate, shard(dimension); column, row and "
      "shard optionally with blocks=N and unit=N; seen \"",
      text, "\"");
  std::set<std::string> seen;
  while (words >> word) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const auto number = number_in(equals == std::string::npos ? "" : word.substr(equals + 1));
    const bool use = number && read_use(key, *number, parsed);
    if (use) check_use_word(key, parsed, text, where);
    const bool division =
        parsed.divides() && number && *number > 0 && (key == "blocks" || key == "unit");
    OSLO_CHECK_AS(
        config, use || division, where, ": cannot read \"", word, "\" in \"", text,
        "\"; column, row and shard take blocks=N and unit=N with N at least 1; row and vocab "
        "take scatter=D, replicate takes split=D and input=D or head_tail=D, with a dimension D");
    OSLO_CHECK_AS(config, seen.insert(key).second, where, ": \"", text, "\" gives ", key, " twice");
    if (division) (key == "blocks" ? parsed.blocks : parsed.unit) = *number;
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
  if (text.find_first_of(":;") == std::string::npos) return {{"", LayerStyle::parse(text, where)}};
  AxisStyles styles;
  std::set<std::string> seen;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ';');) {
    const size_t colon = part.find(':');
    const std::string axis = trimmed(part.substr(0, colon));
    OSLO_CHECK_AS(config, colon != std::string::npos && !axis.empty(), where, ": cannot read \"",
                  part, "\" in \"", text,
                  "\"; styles of several axes are written \"row: shard(1); column: shard(0)\"");
    OSLO_CHECK_AS(config, seen.insert(axis).second, where, ": \"", text, "\" gives the axis ", axis,
                  " twice");
    styles.emplace_back(axis, LayerStyle::parse(part.substr(colon + 1), where));
  }
  return styles;
}

}  // namespace oslo
