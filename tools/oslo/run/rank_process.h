#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "tools/oslo/base/file_descriptor.h"

namespace oslo::tool {

/// One rank: a program in a process group of its own, that dies with this process.
struct RankProcess {
  pid_t pid = -1;             ///< also the id of its process group
  FileDescriptor exit_event;  ///< readable once the program has ended (a pidfd)
  FileDescriptor standard_output;
  FileDescriptor standard_error;
};

/// Starts the file `path` with `argv` and `environment`. Its standard input is this process's when
/// `reads_input`, else empty. Throws `std::system_error`; ENOENT, EACCES and ENOEXEC there mean
/// that the file could not be executed.
RankProcess start_rank(const std::string& path, const std::vector<std::string>& argv,
                       const std::vector<std::string>& environment, bool reads_input);

/// The wait status of a rank that has ended, nothing while it runs. The process stays a zombie, so
/// that its process group id cannot pass to somebody else before the group is ended.
std::optional<int> ended_with(const RankProcess& rank);

/// Sends `signal` to every process of the rank's group.
void signal_group(const RankProcess& rank, int signal);

/// A TCP port of 127.0.0.1 that is free, and stays reserved while `socket` is open: a listener that
/// sets SO_REUSEADDR, as LibTorch's store does, can take it, and nobody is handed it by the system.
struct ReservedPort {
  FileDescriptor socket;
  int port = 0;
};
ReservedPort reserve_loopback_port();

}  // namespace oslo::tool
