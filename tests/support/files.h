#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace oslo::test {

/// A file's bytes; empty where there is none.
inline std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_contents(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace oslo::test
