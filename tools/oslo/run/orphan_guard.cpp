#include "tools/oslo/run/orphan_guard.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <system_error>
#include <vector>

namespace oslo::tool {
namespace {

// The guard process. A pipe write of one pid_t arrives whole.
[[noreturn]] void guard(int groups) {
  setsid();  // out of reach of the terminal and of signals to this process's group
  std::vector<pid_t> watched;
  while (true) {
    pid_t group = 0;
    const ssize_t count = read(groups, &group, sizeof(group));
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof(group)) break;
    watched.push_back(group);
  }
  for (const pid_t group : watched) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

OrphanGuard::OrphanGuard() {
  Pipe groups = make_pipe();
  guard_ = fork();
  if (guard_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (guard_ == 0) {
    groups.write_end.close();
    guard(groups.read_end.get());
  }
  groups_ = std::move(groups.write_end);
}

OrphanGuard::~OrphanGuard() {
  // The groups are gone by now and their ids may be somebody else's.
  kill(guard_, SIGKILL);
  waitpid(guard_, nullptr, 0);
}

void OrphanGuard::watch(pid_t group) {
  [[maybe_unused]] const auto written = write(groups_.get(), &group, sizeof(group));
}

}  // namespace oslo::tool
