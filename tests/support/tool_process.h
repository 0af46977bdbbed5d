#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace oslo::test {

using Words = std::vector<std::string>;

inline Words lines_of(const std::string& text) {
  std::istringstream stream(text);
  Words lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// A running `oslo`, its two output streams and, at the end, its exit code.
class ToolProcess {
 public:
  explicit ToolProcess(Words words, const std::string& input = "/dev/null") {
    words.insert(words.begin(), "oslo");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int out[2];
    int err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    pid_ = fork();
    if (pid_ == 0) {
      for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_DFL);
      dup2(open(input.c_str(), O_RDONLY), STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      execv(OSLO_TOOL, argv.data());
      _exit(99);
    }
    close(out[1]);
    close(err[1]);
    streams_ = {out[0], err[0]};
  }
  ~ToolProcess() {
    if (exit_code_ < 0) {
      kill(pid_, SIGKILL);
      finish();
    }
  }
  ToolProcess(const ToolProcess&) = delete;
  ToolProcess& operator=(const ToolProcess&) = delete;

  // Reads until standard output holds `count` whole lines.
  Words wait_for_lines(std::ptrdiff_t count) {
    while (std::count(output().begin(), output().end(), '\n') < count && read_some()) {
    }
    return lines_of(output());
  }

  void close_output() {
    close(streams_[0]);
    streams_[0] = -1;
  }

  void send(int signal) const { kill(pid_, signal); }

  int finish() {
    while (read_some()) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return exit_code_;
  }

  const std::string& output() const { return texts_[0]; }
  const std::string& error() const { return texts_[1]; }

 private:
  bool read_some() {
    std::array<pollfd, 2> waited = {pollfd{streams_[0], POLLIN, 0}, pollfd{streams_[1], POLLIN, 0}};
    if (streams_[0] < 0 && streams_[1] < 0) return false;
    poll(waited.data(), waited.size(), -1);
    for (size_t i = 0; i < 2; ++i) {
      if (waited[i].revents == 0) continue;
      std::array<char, 65536> buffer;
      const ssize_t count = read(streams_[i], buffer.data(), buffer.size());
      if (count > 0) {
        texts_[i].append(buffer.data(), static_cast<size_t>(count));
      } else {
        close(streams_[i]);
        streams_[i] = -1;
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  int exit_code_ = -1;
  std::array<int, 2> streams_{};
  std::array<std::string, 2> texts_;
};

// Whether process `pid` has ended, waiting for that if need be. The limit only keeps a broken
// launcher from hanging the test.
inline bool ends(pid_t pid) {
  const int event = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (event < 0) return errno == ESRCH;
  pollfd waited = {event, POLLIN, 0};
  const bool ended = poll(&waited, 1, 60'000) == 1;
  close(event);
  return ended;
}

}  // namespace oslo::test
