#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace oslo::shared_memory {

/// Names the machine as far as sharing memory goes: the boot's id, the namespaces (pid, user,
/// mount, ipc) and the user. Processes with equal identities can hand memory to each other; a host
/// name could not tell (two containers may have the same, or one host two).
std::string host_identity();

/// A process, told apart from a later one with the same number by when it started.
struct ProcessId {
  pid_t number = 0;
  uint64_t start_time = 0;  ///< clock ticks since boot

  enum class State {
    running,
    stopped,  ///< by SIGSTOP or a debugger
    ended,
  };

  static ProcessId self();
  State state() const;
  bool alive() const { return state() != State::ended; }
  bool operator==(const ProcessId& other) const = default;
};

}  // namespace oslo::shared_memory
