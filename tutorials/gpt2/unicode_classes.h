#pragma once

#include <cstddef>
#include <string_view>

namespace gpt2 {

/// One character of a UTF-8 text. Ill-formed bytes become single characters `kInvalid`, so that
/// every byte string can be walked and put together again.
struct Utf8Character {
  char32_t code;
  std::size_t length;  ///< bytes, 1 to 4
};

constexpr char32_t kInvalid = 0xFFFFFFFF;

/// The character that starts at byte `at` (which must be inside `text`).
Utf8Character utf8_at(std::string_view text, std::size_t at);

/// Unicode's general categories L* and N* (version 14) and White_Space: `\p{L}`, `\p{N}` and `\s`
/// of regular expressions. Independent of the locale.
bool is_letter(char32_t code);
bool is_number(char32_t code);
bool is_space(char32_t code);

}  // namespace gpt2
