#include "mpu/transport/presence/host_identity.h"

#include <c10/util/StringUtil.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <vector>

namespace oslo::shared_memory {
namespace {

std::string namespace_of(const char* kind) {
  std::array<char, 64> target{};
  const std::string path = std::string("/proc/self/ns/") + kind;
  return ::readlink(path.c_str(), target.data(), target.size() - 1) > 0 ? target.data() : "";
}

/// What /proc says of a process after its name (which may hold anything), or nothing.
std::vector<std::string> status_fields(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return {};
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  std::vector<std::string> fields;
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

// Of the fields after the name; see proc_pid_stat(5), whose numbers are greater by 3.
constexpr size_t kState = 0, kThreads = 17, kStartTime = 19;

}  // namespace

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const ProcessId self = ProcessId::self();
  // Where the boot has no id, nobody but this process is surely on this machine.
  if (boot.empty()) boot = c10::str("process ", self.number, " of ", self.start_time);
  return c10::str(boot, " ", namespace_of("pid"), " ", namespace_of("user"), " ",
                  namespace_of("mnt"), " ", namespace_of("ipc"), " uid:", ::geteuid());
}

ProcessId ProcessId::self() {
  const auto fields = status_fields(::getpid());
  return {::getpid(), fields.size() > kStartTime ? std::stoull(fields[kStartTime]) : 0};
}

ProcessId::State ProcessId::state() const {
  const auto fields = status_fields(number);
  // Where /proc tells nothing (no descriptors left, not mounted) the process may still be there.
  if (fields.size() <= kStartTime) {
    return ::kill(number, 0) == 0 || errno != ESRCH ? State::running : State::ended;
  }
  if (start_time != 0 && std::stoull(fields[kStartTime]) != start_time) return State::ended;
  // The first thread may have ended before the others: then the process is no corpse yet.
  const bool corpse = fields[kState] == "Z" || fields[kState] == "X";
  if (corpse && std::stoi(fields[kThreads]) <= 1) return State::ended;
  return fields[kState] == "T" || fields[kState] == "t" ? State::stopped : State::running;
}

}  // namespace oslo::shared_memory
