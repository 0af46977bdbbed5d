#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace oslo {

/// What errors say of something in the store that this library did not write: whoever reaches the
/// store's port may write to it.
inline constexpr const char* kForeignNote =
    "in the ranks' store are not what this library wrote there: somebody else writes to its port "
    "(docs/security.md)";

/// A rank's text, or rank 0's answer, as it lies in the store.
struct Note {
  enum class Kind : char { text = 't', refused = 'r', failed = 'f', missing = 'm', ended = 'e' };
  /// Longer texts lie in several values: LibTorch's server closes the connection of whoever sends
  /// one of more than 8 MiB.
  static constexpr size_t kPiece = size_t{4} << 20;

  Kind kind = Kind::text;
  int rank = 0;     ///< that failed, is missing or has ended
  int readers = 0;  ///< of an answer: how many ranks besides rank 0 will read it
  std::string text;

  void write(c10d::Store& store, const std::string& key) const;
  /// Takes it out again.
  void erase(c10d::Store& store, const std::string& key) const;
  /// One value, where the text is not longer than that.
  std::vector<uint8_t> bytes() const;

  /// What is at `key`, of `size` ranks that write notes. Throws an `Error` for anything else.
  static Note read(c10d::Store& store, const std::string& key, int size);
  /// The same, whose first value was read already.
  static Note read(c10d::Store& store, const std::string& key, int size,
                   const std::vector<uint8_t>& first);

 private:
  size_t pieces() const { return (text.size() + kPiece - 1) / kPiece; }
};

}  // namespace oslo
