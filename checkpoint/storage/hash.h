#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace oslo {

class InputFile;

/// SHA-256 (FIPS 180-4) of bytes that come in pieces.
class Sha256 {
 public:
  void update(const void* data, size_t bytes);
  /// The digest of everything so far as 64 lower-case hexadecimal digits. Ends the object's use.
  std::string hex();

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_ = {};
  uint64_t length_ = 0;
};

/// SHA-256 of `bytes` in hexadecimal.
std::string sha256(std::string_view bytes);

/// SHA-256 of a file's contents in hexadecimal, as `sha256sum` prints it; throws `Error` if the
/// file cannot be read.
std::string sha256_file(const std::filesystem::path& path);
std::string sha256_file(const InputFile& file);

}  // namespace oslo
