// Every input that a fuzzer found worth keeping, read once more.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/reader_fuzz_test/readers.h"

namespace oslo::fuzz {
namespace {

namespace fs = std::filesystem;

std::string contents_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ReaderFuzz, TheCorpusIsReadOrRefusedByName) {
  for (const auto& [name, read] : readers()) {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(OSLO_SOURCE_DIR "/tests/data/fuzz/" + name)) {
      SCOPED_TRACE(entry.path().string());
      EXPECT_NO_THROW(read(contents_of(entry.path())));
      ++count;
    }
    EXPECT_GT(count, 0U) << name << " has no corpus";
  }
}

}  // namespace
}  // namespace oslo::fuzz
