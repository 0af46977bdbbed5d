#include "checkpoint/storage/hash.h"

#include <gtest/gtest.h>

#include <string>

#include "checkpoint/storage/content_hash.h"
#include "checkpoint/storage/file_hash.h"
#include "checkpoint/storage/file_io.h"
#include "tests/support/error_of.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

// The examples of FIPS 180-4 and NIST's test vectors.
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Lengths around the block and around the room for the length field, in pieces of every size.
TEST(Sha256, PiecesGiveTheDigestOfTheWhole) {
  std::string text;
  for (size_t length = 0; length < 200; ++length, text.push_back(static_cast<char>(7 * length))) {
    const std::string whole = sha256(text);
    for (const size_t piece : {1, 3, 63, 64, 65, 130}) {
      Sha256 hash;
      for (size_t at = 0; at < text.size(); at += piece) {
        hash.update(text.data() + at, std::min(piece, text.size() - at));
      }
      ASSERT_EQ(hash.hex(), whole) << length << " bytes in pieces of " << piece;
    }
  }
}

TEST(Sha256, OfAFileAcrossBuffers) {
  const test::TemporaryDirectory folder;
  std::string text(3'000'001, 'x');
  test::write_contents(folder / "file", text);
  const std::string digest = sha256(text);
  EXPECT_EQ(sha256_file(folder / "file"), digest);
  text[2'000'000] ^= 1;
  test::write_contents(folder / "file", text);
  EXPECT_NE(sha256_file(folder / "file"), digest);
}

TEST(Sha256, MissingFileIsNamed) {
  const test::TemporaryDirectory folder;
  EXPECT_NE(test::error_of([&] { sha256_file(folder / "absent.bin"); }).find("absent.bin"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { sha256_file(folder.path()); }).find("not a regular file"),
            std::string::npos);
}

std::string xxh128(const std::string& text, size_t piece) {
  ContentHash hash;
  for (size_t at = 0; at < text.size(); at += piece) {
    hash.update(text.data() + at, std::min(piece, text.size() - at));
  }
  return hash.hex();
}

// What xxHash's own library says of them.
TEST(ContentHash, KnownDigests) {
  EXPECT_EQ(xxh128("", 1), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh128("abc", 3), "06b05ab6733a618578af5f94892f3950");
  for (const size_t piece : {size_t{1}, size_t{255}, size_t{1024}, size_t{1'000'000}}) {
    EXPECT_EQ(xxh128(std::string(1'000'000, 'a'), piece), "a545df8e384a9579b1fd6fae5285c4eb")
        << piece;
  }
}

TEST(ContentHash, OfAFileIsThatOfWhatWasWritten) {
  const test::TemporaryDirectory folder;
  std::string text(9'000'001, 'x');
  text[5'000'000] = 'y';
  FileContents written;
  {
    OutputFile file(folder / "file");
    file.write(text.data(), 17);
    file.write(text.data() + 17, text.size() - 17);
    file.close();
    written = file.contents();
  }
  EXPECT_EQ(written.bytes, text.size());
  EXPECT_EQ(written.hash, xxh128(text, text.size()));
  EXPECT_EQ(hash_file(folder / "file"), written.hash);
  EXPECT_EQ(hash_file(folder / "file", FileContents::Hash::sha256), sha256(text));
  text[8'999'999] ^= 1;
  test::write_contents(folder / "file", text);
  EXPECT_NE(hash_file(folder / "file"), written.hash);
  EXPECT_NE(test::error_of([&] { hash_file(folder / "absent.bin"); }).find("absent.bin"),
            std::string::npos);
}

}  // namespace
}  // namespace oslo
