#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

// Damaged input for readers: the same for the same seed on every machine.
namespace oslo::test {

/// How many damaged inputs a test tries: OSLO_TEST_FUZZ, or `usual`.
inline int damage_count(int usual) {
  const char* asked = std::getenv("OSLO_TEST_FUZZ");
  return asked == nullptr ? usual : std::atoi(asked);
}

/// Random choices; only the generator's raw numbers, whose sequence the standard fixes.
class Dice {
 public:
  explicit Dice(uint64_t seed) : generator_(seed * 7919 + 17) {}
  /// From 0 to `count` - 1; `count` is at least 1.
  size_t below(size_t count) { return generator_() % count; }
  bool one_in(size_t count) { return below(count) == 0; }
  template <typename Value>
  const Value& one_of(const std::vector<Value>& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937_64 generator_;
};

/// What JSON readers stumble over.
inline const std::vector<std::string>& hostile_words() {
  static const std::vector<std::string> words = {
      "1e400",
      "-1e400",
      "1e308",
      "-0",
      "18446744073709551616",
      "9223372036854775808",
      "-9223372036854775809",
      "0.1",
      "null",
      "true",
      "\"\"",
      "\"\\u0000\"",
      "\"\\ud800\"",
      std::string("\0", 1),
      "\xff",
      "\xc0\x80",
      "\xed\xa0\x80",
      "{",
      "}",
      "[",
      "]",
      ",",
      ":",
      "\"",
      "\\",
      "//",
      "/*",
      "{}",
      "[]",
      "{\"\":0}",
      "\"a\":1,\"a\":1",
      "\xef\xbb\xbf",
      std::string(70'000, '['),
      std::string(3'000, '{'),
      std::string(70'000, '[') + std::string(70'000, ']'),
      std::string(5'000, '9'),
      "\"" + std::string(20'000, 'x') + "\""};
  return words;
}

/// `text` with a few changes: words put in, stretches cut, doubled, moved or overwritten, bits
/// flipped.
inline std::string damaged(std::string text, Dice& dice, const std::vector<std::string>& words) {
  for (size_t changes = 1 + dice.below(3); changes > 0; --changes) {
    const size_t at = dice.below(text.size() + 1);
    const size_t length = dice.below(std::min<size_t>(text.size() - at, 40) + 1);
    switch (dice.below(7)) {
      case 0:
        text.insert(at, dice.one_of(words));
        break;
      case 1:
        text.replace(at, length, dice.one_of(words));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(dice.below(text.size() + 1), text.substr(at, length));
        break;
      case 4:
        text.resize(at);
        break;
      case 5:
        text.replace(at, length, length, static_cast<char>(dice.below(256)));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << dice.below(8)));
    }
  }
  return text;
}

}  // namespace oslo::test
