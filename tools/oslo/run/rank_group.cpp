#include "tools/oslo/run/rank_group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "tools/oslo/run/malloc_environment.h"
#include "tools/oslo/run/orphan_guard.h"
#include "tools/oslo/run/rank_output.h"
#include "tools/oslo/run/rank_process.h"

extern char** environ;

namespace oslo::tool {
namespace {

using Clock = std::chrono::steady_clock;

/// What the other ranks have after the first has failed, before they are asked to end.
constexpr Clock::duration kLastWords = std::chrono::seconds(1);

struct Rank {
  RankProcess process;
  LinePrefixer output;
  LinePrefixer error;
  std::optional<int> status;
};

// A closed standard stream would hand its number to the next pipe, which a rank then loses.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) [[maybe_unused]]
      const int opened = open("/dev/null", O_RDWR);
  }
}

// The signals that end the group arrive as events. One that is ignored from the start (nohup, a
// shell's background job) stays ignored.
FileDescriptor catch_signals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t caught;
  sigemptyset(&caught);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&caught, number);
  }
  sigprocmask(SIG_SETMASK, &caught, nullptr);
  return FileDescriptor(signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK));
}

// This process's environment without what any launcher says about ranks.
std::vector<std::string> inherited_environment() {
  constexpr std::string_view kReplaced[] = {
      "RANK=",        "WORLD_SIZE=",    "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "MASTER_ADDR=",
      "MASTER_PORT=", "OSLO_LAUNCHER=", "OSLO_PLAN_",  "TORCHELASTIC_"};
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto starts = [&](std::string_view name) { return text.starts_with(name); };
    if (std::none_of(std::begin(kReplaced), std::end(kReplaced), starts)) result.emplace_back(text);
  }
  return result;
}

std::string prefix_of(int rank, const RunOptions& options, const OutputQueue& queue) {
  if (!options.prefix) return "";
  const std::string name = "[rank " + std::to_string(rank) + "]";
  if (!queue.is_terminal() || std::getenv("NO_COLOR") != nullptr) return name + " ";
  return "\033[" + std::to_string(31 + rank % 6) + "m" + name + "\033[0m ";
}

std::string signal_name(int number) {
  const char* const name = sigabbrev_np(number);
  return name == nullptr ? "signal " + std::to_string(number) : "SIG" + std::string(name);
}

std::string describe(int status) {
  if (WIFEXITED(status)) return "exit code " + std::to_string(WEXITSTATUS(status));
  return "killed by " + signal_name(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

class RankGroup {
 public:
  explicit RankGroup(const RunOptions& options) : options_(options) {}

  int run(const std::vector<std::string>& argv) {
    signals_ = catch_signals();
    guard_ = std::make_unique<OrphanGuard>();
    if (start(argv)) {
      while (!all_ended()) wait_once();
    }
    end_processes();
    report();
    while (!(out_.is_empty() && err_.is_empty()) && !abandoned_) wait_once();
    return exit_code_;
  }

 private:
  bool start(const std::vector<std::string>& argv);
  void wait_once();
  void read_some(FileDescriptor& stream, LinePrefixer& lines);
  void write_some(OutputQueue& queue);
  void note_ended_ranks();
  void take_signal();
  void end(int exit_code);
  void kill_ranks();
  void end_processes();
  void report();

  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.status; });
  }
  void say(const std::string& text) { err_.add(this, "oslo run: " + text + "\n"); }

  const RunOptions& options_;
  FileDescriptor signals_;
  std::unique_ptr<OrphanGuard> guard_;
  ReservedPort meeting_;
  OutputQueue out_{STDOUT_FILENO};
  OutputQueue err_{STDERR_FILENO};
  std::vector<Rank> ranks_;
  int first_failed_ = -1;
  std::optional<Clock::time_point> end_at_;  // of the others, after the first failure
  int exit_code_ = 0;
  bool ending_ = false;
  bool abandoned_ = false;  // somebody insists: what is not written yet stays unwritten
  std::optional<Clock::time_point> kill_at_;
};

bool RankGroup::start(const std::vector<std::string>& argv) {
  ranks_.reserve(options_.ranks);
  try {
    meeting_ = reserve_loopback_port();
    std::vector<std::string> shared = inherited_environment();
    if (!options_.gpus.empty()) {
      std::erase_if(shared,
                    [](const auto& text) { return text.starts_with("CUDA_VISIBLE_DEVICES="); });
    }
    shared.push_back("OSLO_LAUNCHER=1");
    shared.push_back("WORLD_SIZE=" + std::to_string(options_.ranks));
    shared.push_back("LOCAL_WORLD_SIZE=" + std::to_string(options_.ranks));
    shared.push_back("MASTER_ADDR=127.0.0.1");
    shared.push_back("MASTER_PORT=" + std::to_string(meeting_.port));
    if (options_.ranks > 1 && std::getenv("OMP_NUM_THREADS") == nullptr) {
      say("OMP_NUM_THREADS=1 for each rank, so that they share the cores; set it to change that");
      shared.push_back("OMP_NUM_THREADS=1");
    }
    if (options_.keeps_freed_memory) {
      for (std::string& entry : malloc_environment()) shared.push_back(std::move(entry));
    }
    for (int rank = 0; rank < options_.ranks; ++rank) {
      std::vector<std::string> own = shared;
      own.push_back("RANK=" + std::to_string(rank));
      own.push_back("LOCAL_RANK=" + std::to_string(rank));
      if (!options_.gpus.empty()) own.push_back("CUDA_VISIBLE_DEVICES=" + options_.gpus[rank]);
      // A terminal stops a background process group that reads from it.
      const bool reads_input = rank == 0 && isatty(STDIN_FILENO) != 1;
      ranks_.push_back({start_rank(options_.path, argv, own, reads_input),
                        LinePrefixer(prefix_of(rank, options_, out_), out_),
                        LinePrefixer(prefix_of(rank, options_, err_), err_), std::nullopt});
      guard_->watch(ranks_.back().process.pid);
    }
    return true;
  } catch (const std::system_error& error) {
    const int code = error.code().value();
    say("cannot start rank " + std::to_string(ranks_.size()) + ": " + error.what() +
        (code == ENOEXEC  ? "; it is neither a program for this machine nor a script with a #! line"
         : code == ENOENT ? "; the interpreter that it names is missing"
                          : ""));
    exit_code_ = code == ENOENT ? 127 : code == ENOEXEC || code == EACCES ? 126 : 1;
    return false;
  }
}

void RankGroup::wait_once() {
  std::vector<pollfd> waited = {
      {signals_.get(), POLLIN, 0},
      // poll ignores negative descriptors.
      {out_.is_empty() ? -1 : out_.fd(), POLLOUT, 0},
      {err_.is_empty() ? -1 : err_.fd(), POLLOUT, 0},
  };
  const bool reads = !out_.is_full() && !err_.is_full();
  for (const Rank& rank : ranks_) {
    waited.push_back({rank.status ? -1 : rank.process.exit_event.get(), POLLIN, 0});
    waited.push_back({reads ? rank.process.standard_output.get() : -1, POLLIN, 0});
    waited.push_back({reads ? rank.process.standard_error.get() : -1, POLLIN, 0});
  }
  int timeout = -1;
  if (const auto next = kill_at_ ? kill_at_ : end_at_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
    timeout = static_cast<int>(std::max<int64_t>(0, left.count()));
  }
  if (poll(waited.data(), waited.size(), timeout) < 0) return;

  if (waited[0].revents != 0) take_signal();
  if (waited[1].revents != 0) write_some(out_);
  if (waited[2].revents != 0) write_some(err_);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (waited[3 * i + 4].revents != 0) {
      read_some(ranks_[i].process.standard_output, ranks_[i].output);
    }
    if (waited[3 * i + 5].revents != 0) {
      read_some(ranks_[i].process.standard_error, ranks_[i].error);
    }
  }
  note_ended_ranks();
  if (end_at_ && Clock::now() >= *end_at_) end(exit_code_);
  if (kill_at_ && Clock::now() >= *kill_at_) kill_ranks();
}

void RankGroup::read_some(FileDescriptor& stream, LinePrefixer& lines) {
  std::array<char, 65536> buffer;
  const ssize_t count = read(stream.get(), buffer.data(), buffer.size());
  if (count > 0) lines.add({buffer.data(), static_cast<size_t>(count)});
  if (count == 0) stream.close();
}

void RankGroup::write_some(OutputQueue& queue) {
  if (queue.write_some()) return;
  queue.discard();  // as for any program in a pipe whose reader has left
  end(128 + SIGPIPE);
}

void RankGroup::note_ended_ranks() {
  int failed = -1;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (rank.status) continue;
    rank.status = ended_with(rank.process);
    if (!rank.status || *rank.status == 0) continue;
    // The first exit seen counts, for a rank whose peer died fails too. Among several seen at once,
    // a crash is the likelier cause than an exit.
    const bool crashed = WIFSIGNALED(*rank.status);
    if (failed < 0 || (crashed && !WIFSIGNALED(*ranks_[failed].status)))
      failed = static_cast<int>(i);
  }
  if (failed < 0 || ending_ || first_failed_ >= 0) return;
  first_failed_ = failed;
  exit_code_ = exit_code_of(*ranks_[failed].status);
  // Where all ranks fail alike the others are about to end, too, and one of them perhaps about to
  // say why: asked to end now they would lose what stands in their buffers.
  end_at_ = Clock::now() + (WIFSIGNALED(*ranks_[failed].status) ? Clock::duration(0) : kLastWords);
}

void RankGroup::take_signal() {
  signalfd_siginfo info{};
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  const int number = static_cast<int>(info.ssi_signo);
  if (ending_) {
    abandoned_ = kill_at_ == std::nullopt;
    kill_ranks();
    return;
  }
  abandoned_ = all_ended();
  say(signal_name(number) + " received, ending the ranks");
  end(128 + number);
}

void RankGroup::end(int exit_code) {
  if (ending_) return;
  ending_ = true;
  end_at_.reset();
  exit_code_ = exit_code;
  kill_at_ = Clock::now() + std::chrono::seconds(options_.grace_seconds);
  // From here on, what a rank's first process leaves behind becomes our child, to be waited for.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const Rank& rank : ranks_) {
    signal_group(rank.process, SIGTERM);
    signal_group(rank.process, SIGCONT);
  }
}

void RankGroup::kill_ranks() {
  kill_at_.reset();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].status) say("rank " + std::to_string(i) + " did not end on SIGTERM: killed");
    signal_group(ranks_[i].process, SIGKILL);
  }
}

void RankGroup::end_processes() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  kill_at_.reset();
  end_at_.reset();  // while lines are still written, the group ids may be somebody else's
  for (const Rank& rank : ranks_) signal_group(rank.process, SIGKILL);
  guard_.reset();  // before the group ids become free
  for (Rank& rank : ranks_) {
    while (waitpid(-rank.process.pid, nullptr, 0) > 0) {
    }
    rank.process.exit_event.close();
    // What is still in the pipes; not until their end, which a process that left the group delays.
    for (int i = 0; i < 16; ++i) {
      if (rank.process.standard_output.is_open()) {
        read_some(rank.process.standard_output, rank.output);
      }
      if (rank.process.standard_error.is_open()) read_some(rank.process.standard_error, rank.error);
    }
    rank.process.standard_output.close();
    rank.process.standard_error.close();
    rank.output.finish();
    rank.error.finish();
  }
}

void RankGroup::report() {
  if (first_failed_ < 0) return;
  const Rank& rank = ranks_[first_failed_];
  const std::string name = "rank " + std::to_string(first_failed_);
  const bool on_error = !rank.error.last_lines().empty();
  const auto& lines = on_error ? rank.error.last_lines() : rank.output.last_lines();
  say(name + " failed first: " + describe(*rank.status) +
      (on_error ? "; its last lines on standard error:"
       : lines.empty()
           ? "; it wrote nothing"
           : "; it wrote nothing to standard error; its last lines on standard output:"));
  for (const std::string& line : lines) err_.add(this, "  " + line + "\n");
}

}  // namespace

int run_ranks(const RunOptions& options, const std::vector<std::string>& argv) {
  open_standard_streams();
  return RankGroup(options).run(argv);
}

}  // namespace oslo::tool
