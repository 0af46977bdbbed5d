#include "checkpoint/formats/json/bounded_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

/// Builds a document from the parser's events. The parser itself keeps no more than a bit a level.
template <typename Json>
class TreeBuilder {
 public:
  using Take = std::function<void(std::string, Json)>;
  // The names that the parser calls.
  using number_integer_t = typename Json::number_integer_t;
  using number_unsigned_t = typename Json::number_unsigned_t;
  using number_float_t = typename Json::number_float_t;
  using string_t = typename Json::string_t;
  using binary_t = typename Json::binary_t;

  TreeBuilder(const JsonLimits& limits, Take take) : limits_(limits), take_(std::move(take)) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(number_integer_t value) { return add(value); }
  bool number_unsigned(number_unsigned_t value) { return add(value); }
  bool number_float(number_float_t value, const string_t&) { return add(value); }
  bool string(string_t& value) { return add(std::move(value)); }
  bool binary(binary_t&) { return add(nullptr); }  // no JSON text has it
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& value);
  bool parse_error(size_t position, const string_t& token,
                   const nlohmann::detail::exception& error);

  /// What is wrong with the text; empty where it is JSON.
  const std::string& syntax_error() const { return syntax_error_; }
  Json take_document() { return std::move(document_); }

 private:
  struct Level {
    Json value;
    std::string key;  // of the member that is being read
    std::unordered_set<std::string> seen;
  };

  bool add(Json value);
  bool open(Json value);
  bool close();

  const JsonLimits& limits_;
  const Take take_;
  size_t values_ = 0;
  std::vector<Level> levels_;
  Json document_;
  std::string syntax_error_;
};

template <typename Json>
bool TreeBuilder<Json>::key(string_t& value) {
  Level& level = levels_.back();
  level.key = std::move(value);
  OSLO_CHECK_AS(file, level.key.find('\0') == std::string::npos, "the key '", printable(level.key),
                "' holds a NUL byte, which no name has");
  if (level.seen.insert(level.key).second) return true;
  std::string path;
  for (const Level& each : levels_) {
    path += (path.empty() || each.key.empty() ? "" : ".") + each.key;
  }
  fail_as(ErrorKind::file, "duplicate key '", printable(path),
          "': which value is meant? keep one of them");
}

template <typename Json>
bool TreeBuilder<Json>::add(Json value) {
  OSLO_CHECK_AS(file, ++values_ <= limits_.values, "it has more than the ", limits_.values,
                " values that are read at most");
  if (levels_.empty()) {
    document_ = std::move(value);
    return true;
  }
  Level& level = levels_.back();
  if (level.value.is_array()) {
    level.value.push_back(std::move(value));
  } else if (take_ && levels_.size() == 1) {
    values_ = 0;
    take_(std::move(level.key), std::move(value));
  } else if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
    // Not emplace, which looks at all members before: the key is known to be new.
    level.value.template get_ref<typename Json::object_t&>().emplace_back(level.key,
                                                                          std::move(value));
  } else {
    level.value.emplace(level.key, std::move(value));
  }
  return true;
}

template <typename Json>
bool TreeBuilder<Json>::open(Json value) {
  OSLO_CHECK_AS(file, levels_.size() < limits_.depth, "it is nested deeper than the ",
                limits_.depth, " levels that are read at most");
  OSLO_CHECK_AS(file, !take_ || !levels_.empty() || value.is_object(), "it is not a JSON object");
  levels_.push_back({std::move(value), {}, {}});
  return true;
}

template <typename Json>
bool TreeBuilder<Json>::close() {
  Json value = std::move(levels_.back().value);
  levels_.pop_back();
  return add(std::move(value));
}

template <typename Json>
bool TreeBuilder<Json>::parse_error(size_t position, const string_t& token,
                                    const nlohmann::detail::exception& error) {
  constexpr int kOutOfRange = 406;
  OSLO_CHECK_AS(file, error.id != kOutOfRange, "the number ", printable(token, 40), " at byte ",
                position, " is beyond what a double holds");
  const std::string text = error.what();
  const std::string before = "parse error at ";
  const size_t start = text.find(before);
  syntax_error_ =
      printable(start == std::string::npos ? text : text.substr(start + before.size()), 300);
  return false;
}

/// The document in `text`, or nothing and a `syntax_error`.
template <typename Json>
std::optional<Json> build(std::string_view text, const JsonLimits& limits, bool comments,
                          std::string& syntax_error,
                          typename TreeBuilder<Json>::Take take = nullptr) {
  OSLO_CHECK_AS(file, text.size() <= limits.bytes, "it has ", text.size(), " bytes, and at most ",
                limits.bytes, " are read");
  // The parser takes a NUL for the end.
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    syntax_error = c10::str("byte ", nul, " is a NUL");
    return std::nullopt;
  }
  TreeBuilder<Json> builder(limits, std::move(take));
  const bool whole = Json::sax_parse(text.begin(), text.end(), &builder, Json::input_format_t::json,
                                     /*strict=*/true, comments);
  syntax_error = builder.syntax_error();
  if (!whole) return std::nullopt;
  return builder.take_document();
}

template <typename Json>
Json build_or_fail(std::string_view text, const JsonLimits& limits, bool comments,
                   typename TreeBuilder<Json>::Take take = nullptr) {
  std::string syntax_error;
  std::optional<Json> document = build<Json>(text, limits, comments, syntax_error, std::move(take));
  OSLO_CHECK_AS(file, document, "not valid JSON: ", syntax_error);
  return *std::move(document);
}

}  // namespace

nlohmann::json read_json(std::string_view text, const JsonLimits& limits) {
  return build_or_fail<nlohmann::json>(text, limits, /*comments=*/false);
}

nlohmann::ordered_json read_ordered_json(std::string_view text, const JsonLimits& limits) {
  return build_or_fail<nlohmann::ordered_json>(text, limits, /*comments=*/true);
}

std::optional<nlohmann::ordered_json> try_read_ordered_json(std::string_view text,
                                                            const JsonLimits& limits) {
  std::string ignored;
  return build<nlohmann::ordered_json>(text, limits, /*comments=*/true, ignored);
}

void read_json_members(std::string_view text, const JsonLimits& limits,
                       const std::function<void(std::string key, nlohmann::json value)>& take) {
  const auto rest = build_or_fail<nlohmann::json>(text, limits, /*comments=*/false, take);
  OSLO_CHECK_AS(file, rest.is_object(), "it is not a JSON object");
}

std::string write_json(const nlohmann::json& document, const JsonLimits& limits, int indent) {
  // Level by level, because to dump recurses.
  std::vector<const nlohmann::json*> level = {&document};
  size_t values = 0;
  for (size_t depth = 0; !level.empty(); ++depth) {
    values += level.size();
    OSLO_CHECK_AS(file, values <= limits.values, "it has more than the ", limits.values,
                  " values that are read at most");
    std::vector<const nlohmann::json*> below;
    for (const nlohmann::json* value : level) {
      OSLO_CHECK_AS(file, !value->is_structured() || depth < limits.depth,
                    "it is nested deeper than the ", limits.depth, " levels that are read at most");
      OSLO_CHECK_AS(
          file,
          !value->is_binary() && !value->is_discarded() &&
              (!value->is_number_float() || std::isfinite(value->get<double>())),
          "it holds a number that is not finite, or binary data, which JSON has no text for");
      if (!value->is_structured()) continue;
      for (const nlohmann::json& item : *value) below.push_back(&item);
    }
    level = std::move(below);
  }
  std::string text;
  try {
    text = document.dump(indent);
  } catch (const nlohmann::json::exception&) {
    fail_as(ErrorKind::file, "it holds text that is not UTF-8");
  }
  OSLO_CHECK_AS(file, text.size() <= limits.bytes, "it has ", text.size(), " bytes, and at most ",
                limits.bytes, " are read");
  return text;
}

}  // namespace oslo
