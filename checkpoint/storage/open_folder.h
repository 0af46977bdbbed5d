#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "checkpoint/storage/file_io.h"

namespace oslo {

/// A folder opened for reading, so that all its files are of one save: what takes its name
/// afterwards is another folder. Files that are held stay readable when a save has removed them.
class OpenFolder {
 public:
  /// Follows links. Throws `Error` naming the folder where it cannot be opened.
  explicit OpenFolder(std::filesystem::path path);
  ~OpenFolder();
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;

  /// The name that it was opened by.
  const std::filesystem::path& path() const { return path_; }

  /// Whether there is something of this name, whatever it is.
  bool has(const std::string& name) const;

  /// Throws `Error` as `InputFile` does.
  InputFile open(const std::string& name) const;

  /// Opens a file now, for every `open` from now on. No more files are held than a quarter of those
  /// that the system lets a process open: others are opened when they are asked for, and are
  /// missing by then where the folder was replaced. Throws as `open` does.
  void hold(const std::string& name);

  /// Whether its name still leads to it, and the names of the files that are held to them, as they
  /// were when they were opened.
  bool in_place() const;
  /// Whether nobody has written into the files that are held since they were opened. What replaces
  /// the folder or a file leaves these as they are.
  bool is_as_opened() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  size_t room_ = 0;
  std::map<std::string, InputFile> held_;
};

/// How often a reader begins again because what it reads is replaced.
inline constexpr int kMostReadings = 100;

/// Throws that `path` was replaced `kMostReadings` times while it was read.
[[noreturn]] void fail_as_replaced(const std::filesystem::path& path);

/// Runs `read` until what it opened was in place from its beginning to its end: again where
/// `in_place` says that it is not, after a success or an `Error`. While `is_open` says that nothing
/// was found yet, an error is believed after some looks: a save may be between two names. `read`
/// begins from nothing each time.
void read_in_place(const std::filesystem::path& path, const std::function<void()>& read,
                   const std::function<bool()>& is_open, const std::function<bool()>& in_place);

}  // namespace oslo
