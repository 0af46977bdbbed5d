#pragma once

#include <functional>
#include <optional>
#include <string>

namespace oslo {

/// What the launcher of this process wrote into its environment: who it is among how many, and
/// where they meet. One table in the source file holds the launchers and their variables.
///
/// `detect` reads them in this order: `oslo run`, torchrun, plain RANK and WORLD_SIZE, Open MPI, a
/// Slurm step of more than one task; alone without any of them. Settings that are missing in part
/// or contradict each other are refused with an `Error` that names the variable, its value and the
/// launcher; nothing is guessed.
struct LaunchEnvironment {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;

  /// Where rank 0, or the launcher, hosts the store. The port is 0 at size 1, where nobody meets.
  std::string master_address = "127.0.0.1";
  int master_port = 0;

  /// torchrun's agent hosts the store: rank 0 connects to it as every other rank does.
  bool store_is_hosted_elsewhere = false;

  /// "/restart_2" under torchrun: its store outlives a restarted group, whose keys must be fresh.
  std::string restart_prefix;

  /// "oslo run", "torchrun", "environment variables", "Open MPI", "Slurm" or "alone".
  std::string source = "alone";

  /// The value of an environment variable; nothing when it is absent. An empty one counts as
  /// absent.
  using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

  static LaunchEnvironment detect();
  static LaunchEnvironment detect(const Lookup& lookup);
};

/// Whether an address that a launcher gave is this host's own, by how it is written.
bool is_loopback(const std::string& address);

}  // namespace oslo
