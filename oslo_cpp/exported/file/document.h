#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oslo::exported {

/// A value of a JSON document from outside, with the words that say where it stands. Whatever is
/// missing or of another type than asked for throws `Error` with these words and what was seen.
/// The document must outlive it; copying is cheap but for the words.
class Document {
 public:
  Document(const nlohmann::json& value, std::string where)
      : value_(&value), where_(std::move(where)) {}

  /// The member `key` of an object.
  Document member(const char* key) const;
  /// The same, or nothing where it is absent or null.
  std::optional<Document> find(const char* key) const;
  /// The one member of an object that has one: how torch.export writes a value of several types.
  std::pair<std::string, Document> choice() const;
  /// All members of an object, by name.
  std::vector<std::pair<std::string, Document>> members() const;
  /// The items of a list.
  std::vector<Document> items() const;

  const std::string& text() const;
  int64_t integer() const;
  /// "Infinity", "-Infinity" and "NaN" are numbers here, as JSON has none.
  double real() const;
  bool truth() const;
  std::vector<int64_t> integers() const;

  /// The same value under other words.
  Document at(std::string where) const { return {*value_, std::move(where)}; }
  const std::string& where() const { return where_; }

 private:
  [[noreturn]] void expected(std::string_view what) const;

  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace oslo::exported
