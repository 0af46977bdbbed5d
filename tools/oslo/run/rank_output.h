#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace oslo::tool {

/// Where the ranks' lines go: standard output or standard error of this process. Writing never
/// blocks; what the reader has not taken yet waits here.
class OutputQueue {
 public:
  explicit OutputQueue(int fd);

  /// Whether ranks should not be read for now: the reader is far behind.
  bool is_full() const { return waiting_.size() > 256 * 1024; }
  bool is_empty() const { return waiting_.empty(); }
  bool is_terminal() const { return is_terminal_; }
  int fd() const { return fd_; }

  /// Adds `text` of `writer`. Text after another writer's progress line starts on a new line.
  void add(const void* writer, std::string_view text);

  /// Writes a part. Call it when `fd()` is writable. False when nobody reads any more.
  bool write_some();

  /// Drops what waits and all that follows.
  void discard();

 private:
  int fd_;
  bool is_terminal_;
  bool discards_ = false;
  std::string waiting_;
  const void* progress_of_ = nullptr;  // whose text ended in '\r'
};

/// Cuts one stream of one rank into lines and puts `prefix` before each. Lines end in '\n', or in
/// '\r' for progress lines, which keep it. A line above 1 MiB is cut there.
class LinePrefixer {
 public:
  LinePrefixer(std::string prefix, OutputQueue& queue)
      : prefix_(std::move(prefix)), queue_(&queue) {}

  void add(std::string_view text);

  /// Passes on a last line that has no end.
  void finish();

  /// The last lines that ended, oldest first, without prefix.
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void pass_on(std::string_view end);

  std::string prefix_;
  OutputQueue* queue_;
  std::string line_;
  bool after_return_ = false;  // the '\n' of "\r\n" must not count as a line of its own
  std::deque<std::string> last_lines_;
};

}  // namespace oslo::tool
