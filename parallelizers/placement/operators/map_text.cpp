#include "parallelizers/placement/operators/map_text.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "mpu/base/error.h"

namespace oslo {
namespace {

std::string without_blanks(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) result += c;
  }
  return result;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// For the dimensions that ".." stands for: behind all letters that a text can name.
std::string dots_of(int64_t count) {
  constexpr int64_t kAlphabet = 26;
  return letters(kAlphabet + count).substr(kAlphabet);
}

}  // namespace

MapText::Term MapText::term(const std::string& text) const {
  Term term;
  term.text = text;
  std::set<char> seen;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.') {
      OSLO_CHECK(!term.dots && i + 1 < text.size() && text[i + 1] == '.', "the map '", text_,
                 "': '", text, "' has a dot too many or too few; write \"..\" once, for all ",
                 "dimensions that have no letter");
      term.dots = true;
      ++i;
      continue;
    }
    OSLO_CHECK(c == '-' || std::isalpha(static_cast<unsigned char>(c)) != 0, "the map '", text_,
               "': '", c, "' in '", text, "' is no letter; write one letter a dimension, as in ",
               "\"..K, KN -> ..N\"");
    OSLO_CHECK(c == '-' || seen.insert(c).second, "the map '", text_, "': '", text, "' has ", c,
               " twice; dimensions that go together within one tensor (a diagonal) have no map: ",
               "register a function on oslo::Call");
    (term.dots ? term.after : term.before) += c;
  }
  return term;
}

MapText::MapText(const std::string& text, const std::string& whole) : text_(text) {
  const std::string bare = without_blanks(text);
  const size_t arrow = bare.find("->");
  OSLO_CHECK(arrow != std::string::npos && bare.find("->", arrow + 2) == std::string::npos,
             "the map '", text, "' does not have one \"->\" between operands and results; write ",
             "it as in \"..K, KN -> ..N\"");
  for (const auto& part : split(bare.substr(0, arrow))) operands_.push_back(term(part));
  for (const auto& part : split(bare.substr(arrow + 2))) results_.push_back(term(part));
  std::string known;
  bool dots = false;
  for (const Term& operand : operands_) {
    known += operand.before + operand.after;
    dots |= operand.dots;
  }
  for (const Term& result : results_) {
    OSLO_CHECK(dots || !result.dots, "the map '", text, "': the result '", result.text,
               "' has \"..\", and no operand has");
    for (const char letter : result.before + result.after) {
      OSLO_CHECK(letter == '-' || contains(known, letter), "the map '", text, "': the result '",
                 result.text, "' has ", letter,
                 ", which no operand has; write '-' for a dimension that only the result has");
    }
  }
  const Term alone = term(without_blanks(whole));
  whole_ = alone.before + alone.after;
  whole_dots_ = alone.dots;
  OSLO_CHECK(!whole_dots_ || dots, "the map '", text,
             "': \"..\" shall be whole, and nothing has it");
  for (const char letter : whole_) {
    OSLO_CHECK(letter != '-' && contains(known, letter), "the map '", text, "': ", letter,
               " shall be whole, and no operand has it");
  }
}

std::string MapText::expanded(const Term& term, const std::string& dots) {
  return term.before + (term.dots ? dots : "") + term.after;
}

DimensionMap MapText::of(std::span<const Value> values, std::span<const size_t> terms) const {
  int64_t most = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const Term& term = operands_[terms[i]];
    const int64_t beside = values[i].dim() - static_cast<int64_t>(term.letters());
    OSLO_CHECK(term.dots ? beside >= 0 : beside == 0, "the map '", text_, "' gives tensor ",
               terms[i], " the dimensions '", term.text, "', and it has ", values[i].dim(),
               ", of sizes ", c10::IntArrayRef(values[i].sizes()));
    if (term.dots) most = std::max(most, beside);
  }
  const std::string all = dots_of(most);
  // The size of each of them: that of an operand in which it is not 1.
  std::vector<int64_t> sizes(most, 1);
  const auto for_each_dot = [&](const auto& visit) {
    for (size_t i = 0; i < values.size(); ++i) {
      const Term& term = operands_[terms[i]];
      if (!term.dots) continue;
      const int64_t count = values[i].dim() - static_cast<int64_t>(term.letters());
      for (int64_t d = 0; d < count; ++d) {
        visit(i, most - count + d, values[i].size(static_cast<int64_t>(term.before.size()) + d));
      }
    }
  };
  for_each_dot([&](size_t, int64_t dot, int64_t size) {
    if (size != 1) sizes[dot] = size;
  });
  std::vector<std::string> dots(values.size());
  for_each_dot([&](size_t i, int64_t dot, int64_t size) {
    dots[i] += size == 1 && sizes[dot] != 1 ? '-' : all[dot];
  });
  DimensionMap map;
  for (size_t i = 0; i < values.size(); ++i) {
    map.operands.push_back(expanded(operands_[terms[i]], dots[i]));
  }
  for (const Term& result : results_) map.results.push_back(expanded(result, all));
  map.whole = whole_ + (whole_dots_ ? all : "");
  return map;
}

}  // namespace oslo
