#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace oslo {

/// The most that a reader takes of a JSON text.
struct JsonLimits {
  size_t bytes = size_t{1} << 20;
  size_t values = size_t{1} << 20;  ///< numbers, texts, lists and objects
  size_t depth = 16;                ///< lists and objects in each other
};

// JSON from a source that nobody vouches for. All readers here throw `Error`, which the caller
// leads with the name of the source, for what is no JSON (with line and column), for a key that an
// object has twice (with its path: all but one would silently be lost) or that holds a NUL, for a
// number beyond a double, and for more than the limits. Nothing recurses. Time is linear in the
// text; memory is at most 10 times the text and some 150 bytes a value.

/// The document; objects in alphabetical order.
nlohmann::json read_json(std::string_view text, const JsonLimits& limits);

/// The document with its objects in the order written; `//` and `/* */` comments are allowed.
nlohmann::ordered_json read_ordered_json(std::string_view text, const JsonLimits& limits);

/// The same, or nothing where the text is no JSON. Still throws for JSON beyond the limits.
std::optional<nlohmann::ordered_json> try_read_ordered_json(std::string_view text,
                                                            const JsonLimits& limits);

/// Calls `take` with each member of the outermost object, which is dropped before the next is read:
/// `limits.values` counts those of one member. Throws where the document is no object.
void read_json_members(std::string_view text, const JsonLimits& limits,
                       const std::function<void(std::string key, nlohmann::json value)>& take);

/// The text of a document that a program made, which a reader with these limits takes: throws
/// `Error` where it is beyond them, or holds text that is not UTF-8, a number that is not finite or
/// binary data, which have no JSON text.
std::string write_json(const nlohmann::json& document, const JsonLimits& limits, int indent = -1);

}  // namespace oslo
