#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace oslo::shared_memory {

/// Memory that several processes map. Its bytes are committed before they are used, so that missing
/// memory is an `oslo::Error` and never a SIGBUS later.
class Segment {
 public:
  enum class Kind {
    anonymous,  ///< memfd: no name, so nothing is left behind whenever a process is killed
    named,  ///< POSIX: a random name, readable by its owner only, to be unlinked when all have it
  };

  /// `bytes` of zeros, none of them committed yet.
  static std::shared_ptr<Segment> create(Kind kind, size_t bytes);

  /// That of another process (or of this one), by what its `address()` says there. Throws where the
  /// address is none that `create` makes, or leads to anything but this user's memory with this
  /// inode and size.
  static std::shared_ptr<Segment> open(const std::string& address, size_t bytes, uint64_t inode);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  uint64_t inode() const { return inode_; }
  /// A path, valid while this process lives and has this object.
  const std::string& address() const { return address_; }

  /// Makes sure that there is memory behind these bytes.
  void commit(size_t offset, size_t bytes) const;

  /// Gives back the memory behind whole pages of these bytes, which are zeros and not committed
  /// from then on.
  void release(size_t offset, size_t bytes) const;

  /// Removes the name, if there is one. Those who have opened the segment keep it.
  void unlink();

 private:
  Segment(int descriptor, size_t bytes, std::string address, std::string name);

  int descriptor_;
  size_t bytes_;
  uint64_t inode_ = 0;
  std::byte* data_ = nullptr;
  std::string address_;
  std::string name_;
};

}  // namespace oslo::shared_memory
