#include "tools/oslo/run/rank_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <system_error>

namespace oslo::tool {
namespace {

[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::generic_category(), what);
}

std::vector<char*> as_c_array(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

// Runs in the child. Returns only when something failed, with errno set.
void become(const char* path, char** argv, char** environment, pid_t parent, int input, int output,
            int error) {
  if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (getppid() != parent) _exit(1);  // the parent died before the line above
  if (input >= 0 && dup2(input, STDIN_FILENO) < 0) return;
  if (dup2(output, STDOUT_FILENO) < 0 || dup2(error, STDERR_FILENO) < 0) return;
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(path, argv, environment);
}

}  // namespace

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail(errno, "pipe");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

RankProcess start_rank(const std::string& path, const std::vector<std::string>& argv,
                       const std::vector<std::string>& environment, bool reads_input) {
  Pipe output = make_pipe();
  Pipe error = make_pipe();
  Pipe failure = make_pipe();  // closed by a successful exec, otherwise carries errno
  FileDescriptor input;
  if (!reads_input) {
    input = FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!input.is_open()) fail(errno, "/dev/null");
  }
  const std::vector<char*> argv_array = as_c_array(argv);
  const std::vector<char*> environment_array = as_c_array(environment);

  const pid_t parent = getpid();
  RankProcess rank;
  rank.pid = fork();
  if (rank.pid < 0) fail(errno, "fork");
  if (rank.pid == 0) {
    become(path.c_str(), const_cast<char**>(argv_array.data()),
           const_cast<char**>(environment_array.data()), parent, input.get(),
           output.write_end.get(), error.write_end.get());
    const int reason = errno;
    [[maybe_unused]] const auto written = write(failure.write_end.get(), &reason, sizeof(reason));
    _exit(127);
  }
  setpgid(rank.pid, rank.pid);  // also here: the group must exist before anybody signals it
  failure.write_end.close();
  int reason = 0;
  ssize_t count = 0;
  do {
    count = read(failure.read_end.get(), &reason, sizeof(reason));
  } while (count < 0 && errno == EINTR);
  if (count == sizeof(reason)) {
    waitpid(rank.pid, nullptr, 0);
    fail(reason, path.c_str());
  }

  rank.exit_event = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, rank.pid, 0)));
  if (!rank.exit_event.is_open()) {
    const int cause = errno;
    signal_group(rank, SIGKILL);
    waitpid(rank.pid, nullptr, 0);
    fail(cause, "pidfd_open");
  }
  rank.standard_output = std::move(output.read_end);
  rank.standard_error = std::move(error.read_end);
  fcntl(rank.standard_output.get(), F_SETFL, O_NONBLOCK);
  fcntl(rank.standard_error.get(), F_SETFL, O_NONBLOCK);
  return rank;
}

std::optional<int> ended_with(const RankProcess& rank) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  return info.si_code == CLD_EXITED ? W_EXITCODE(info.si_status, 0) : W_EXITCODE(0, info.si_status);
}

void signal_group(const RankProcess& rank, int signal) {
  kill(-rank.pid, signal);
}

ReservedPort reserve_loopback_port() {
  ReservedPort result;
  result.socket = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!result.socket.is_open()) fail(errno, "socket");
  const int yes = 1;
  setsockopt(result.socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(result.socket.get(), generic, size) != 0 ||
      getsockname(result.socket.get(), generic, &size) != 0) {
    fail(errno, "no free port on 127.0.0.1");
  }
  result.port = ntohs(address.sin_port);
  return result;
}

}  // namespace oslo::tool
