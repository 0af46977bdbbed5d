#include "tools/oslo/run/rank_output.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace oslo::tool {
namespace {

constexpr size_t kLongestLine = 1 << 20;
constexpr size_t kLinesKept = 10;

}  // namespace

OutputQueue::OutputQueue(int fd) : fd_(fd), is_terminal_(isatty(fd) == 1) {}

void OutputQueue::add(const void* writer, std::string_view text) {
  if (discards_) return;
  if (progress_of_ != nullptr && progress_of_ != writer) waiting_ += '\n';
  waiting_ += text;
  progress_of_ = text.ends_with('\r') ? writer : nullptr;
}

void OutputQueue::discard() {
  discards_ = true;
  waiting_.clear();
}

bool OutputQueue::write_some() {
  // A pipe that polls as writable takes PIPE_BUF bytes without blocking, and perhaps no more.
  const ssize_t count = write(fd_, waiting_.data(), std::min<size_t>(waiting_.size(), PIPE_BUF));
  if (count > 0) waiting_.erase(0, static_cast<size_t>(count));
  return count >= 0 || errno == EINTR || errno == EAGAIN;
}

void LinePrefixer::add(std::string_view text) {
  while (!text.empty()) {
    if (after_return_ && line_.empty() && text[0] == '\n') {
      queue_->add(this, "\n");
      text.remove_prefix(1);
      after_return_ = false;
      continue;
    }
    const size_t end = text.find_first_of("\r\n");
    line_ += text.substr(0, end);
    if (end == std::string_view::npos) break;
    pass_on(text.substr(end, 1));
    text.remove_prefix(end + 1);
  }
  if (line_.size() > kLongestLine) pass_on("\n");
}

void LinePrefixer::finish() {
  if (!line_.empty()) pass_on("\n");
}

void LinePrefixer::pass_on(std::string_view end) {
  queue_->add(this, prefix_ + line_ + std::string(end));
  after_return_ = end == "\r";
  last_lines_.push_back(std::move(line_));
  if (last_lines_.size() > kLinesKept) last_lines_.pop_front();
  line_.clear();
}

}  // namespace oslo::tool
