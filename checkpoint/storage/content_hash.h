#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace oslo {

/// XXH3 of 128 bits (xxHash) of bytes that come in pieces: tells damage from contents at the speed
/// of memory, where SHA-256 is slower than a disk. It does not keep out somebody who wants two
/// files of one hash.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  void update(const void* data, uint64_t bytes);
  /// The hash of everything so far: 32 lower-case hexadecimal digits, as `xxh128sum` prints them.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a file was when it was written.
struct FileContents {
  /// By which function the hash was computed. Older checkpoints have SHA-256.
  enum class Hash { xxh128, sha256 };

  uint64_t bytes = 0;
  Hash kind = Hash::xxh128;
  std::string hash;
  bool operator==(const FileContents&) const = default;
};

}  // namespace oslo
