#include "tutorials/gpt2/bpe_tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

#include "tutorials/gpt2/unicode_classes.h"

namespace gpt2 {
namespace {

using Ids = std::vector<std::int64_t>;

const std::string kData = OSLO_TUTORIAL_DATA;

BpeTokenizer& tokenizer() {
  static BpeTokenizer tokenizer(kData + "/gpt2-bpe");
  return tokenizer;
}

std::string tinyshakespeare() {
  std::ifstream file(kData + "/tinyshakespeare.txt", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  for (std::size_t at = 0; at < text.size(); at += result.back().size()) {
    result.emplace_back(text.substr(at, word_length(text, at)));
  }
  return result;
}

// The ids are those of Hugging Face's tokenizers 0.23 on the same two files.
TEST(BpeTokenizer, GivesThePublishedIds) {
  EXPECT_EQ(tokenizer().vocab_size(), 50257);
  EXPECT_EQ(tokenizer().end_of_text(), 50256);
  EXPECT_EQ(tokenizer().encode(""), Ids{});
  EXPECT_EQ(tokenizer().encode("Hello world"), (Ids{15496, 995}));
  EXPECT_EQ(tokenizer().encode("Hello, world!"), (Ids{15496, 11, 995, 0}));
  EXPECT_EQ(tokenizer().encode("tiktoken is great!"), (Ids{83, 1134, 30001, 318, 1049, 0}));
  EXPECT_EQ(tokenizer().encode("antidisestablishmentarianism"),
            (Ids{415, 29207, 44390, 3699, 1042}));
  EXPECT_EQ(tokenizer().encode("2 + 2 = 4"), (Ids{17, 1343, 362, 796, 604}));
  EXPECT_EQ(tokenizer().encode("na\u00EFve caf\u00E9  \n\n x"),
            (Ids{2616, 38776, 40304, 220, 220, 628, 2124}));
  EXPECT_EQ(
      tokenizer().encode("\u304A\u8A95\u751F\u65E5\u304A\u3081\u3067\u3068\u3046"),
      (Ids{2515, 232, 45739, 243, 37955, 33768, 98, 2515, 232, 1792, 223, 30640, 30201, 29557}));
  EXPECT_EQ(tokenizer().encode("I'll don't we've  THEY'RE '' 'S"),
            (Ids{40, 1183, 836, 470, 356, 1053, 220, 33302, 6, 2200, 10148, 705, 50}));
}

TEST(BpeTokenizer, GivesTheReferenceIdsOfAWholeBook) {
  const Ids ids = tokenizer().encode(tinyshakespeare());
  EXPECT_EQ(ids.size(), 338025u);
  std::uint64_t hash = 0;
  for (std::int64_t id : ids) hash = hash * 1000003 + static_cast<std::uint64_t>(id);
  EXPECT_EQ(hash, 10029853847900792667u);
  EXPECT_EQ(tokenizer().decode(ids), tinyshakespeare());
}

TEST(BpeTokenizer, SplitsAsThePatternDoes) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(words("it's we'll"), (Words{"it", "'s", " we", "'ll"}));
  EXPECT_EQ(words(" 's"), (Words{" '", "s"}));
  EXPECT_EQ(words("abc123!?x"), (Words{"abc", "123", "!?", "x"}));
  EXPECT_EQ(words("a   b"), (Words{"a", "  ", " b"}));
  EXPECT_EQ(words("a\n\nb"), (Words{"a", "\n", "\n", "b"}));
  EXPECT_EQ(words("a \n "), (Words{"a", " \n "}));
  EXPECT_EQ(words(" "), (Words{" "}));
  EXPECT_EQ(words("x\u00A0y"), (Words{"x", "\u00A0", "y"}));
}

TEST(BpeTokenizer, RoundTripsAnyBytes) {
  std::mt19937 random(7);
  for (std::size_t length = 0; length < 3000; length += 1 + length / 20) {
    std::string bytes;
    for (std::size_t i = 0; i < length; ++i) bytes.push_back(static_cast<char>(random() & 0xFF));
    EXPECT_EQ(tokenizer().decode(tokenizer().encode(bytes)), bytes) << length << " bytes";
  }
}

TEST(BpeTokenizer, WalksIllFormedUtf8ByteByByte) {
  for (std::string_view bytes : {"\x80", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF5\x80",
                                 "\xE3\x81", "\xF4\x90\x80\x80"}) {
    const Utf8Character character = utf8_at(bytes, 0);
    EXPECT_EQ(character.code, kInvalid);
    EXPECT_EQ(character.length, 1u);
    EXPECT_EQ(tokenizer().decode(tokenizer().encode(bytes)), bytes);
  }
  EXPECT_EQ(utf8_at("\xF0\x9F\x98\x80", 0).code, U'\U0001F600');
}

TEST(BpeTokenizer, KnowsUnicodeClasses) {
  for (char32_t letter : {U'a', U'Z', U'\u00AA', U'\u00DF', U'\u03B1', U'\u0416', U'\u05D0',
                          U'\u4E00', U'\uAC00', U'\U0002A6DF'}) {
    EXPECT_TRUE(is_letter(letter)) << static_cast<std::uint32_t>(letter);
    EXPECT_FALSE(is_number(letter) || is_space(letter));
  }
  for (char32_t number : {U'0', U'9', U'\u00BD', U'\u0663', U'\u2167', U'\u3007'}) {
    EXPECT_TRUE(is_number(number)) << static_cast<std::uint32_t>(number);
    EXPECT_FALSE(is_letter(number));
  }
  for (char32_t other : {U'!', U'_', U'\u0301', U'\u20AC', U'\U0001F600', char32_t{kInvalid}}) {
    EXPECT_FALSE(is_letter(other) || is_number(other) || is_space(other));
  }
}

TEST(BpeTokenizer, RefusesBadInput) {
  EXPECT_THROW(tokenizer().decode({50257}), std::out_of_range);
  EXPECT_THROW(tokenizer().decode({-1}), std::out_of_range);
  try {
    BpeTokenizer missing("no/such/folder");
    FAIL() << "a missing folder was accepted";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("no/such/folder/encoder.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace gpt2
