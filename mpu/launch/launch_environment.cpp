#include "mpu/launch/launch_environment.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "mpu/base/digest.h"
#include "mpu/base/environment.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

// Several names in a cell: the first one that is set counts.
struct Launcher {
  const char* source;
  const char* marker;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;   // what the ranks of one job share, for a port when MASTER_PORT is absent
  const char* node;  // this host's index, where local_size lists every host
};

// LOCAL_SIZE is DeepSpeed's word.
#define TORCH_NAMES "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE LOCAL_SIZE", "", ""
constexpr Launcher kLaunchers[] = {
    {"oslo run", row_of(Variable::launcher).name, TORCH_NAMES},
    {"torchrun", "TORCHELASTIC_RUN_ID", TORCH_NAMES},
    {"environment variables", "RANK", TORCH_NAMES},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE OMPI_MCA_ess_base_jobid", ""},
    {"Slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS", "SLURM_LOCALID",
     "SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID",
     "SLURM_NODEID"},
    // Last, so that an exported WORLD_SIZE does not shadow mpirun and srun; refused without RANK.
    {"environment variables", "WORLD_SIZE", TORCH_NAMES},
};
#undef TORCH_NAMES

struct Setting {
  std::string name;
  std::string text;
  explicit operator bool() const { return !text.empty(); }
};

class Reader {
 public:
  Reader(const Launcher& launcher, const LaunchEnvironment::Lookup& lookup)
      : launcher_(launcher), lookup_(lookup) {}

  // The first of the space-separated `names` that is set. Without any: the first name and no text.
  Setting find(std::string_view names) const {
    Setting first;
    while (!names.empty()) {
      const auto end = std::min(names.find(' '), names.size());
      const std::string name(names.substr(0, end));
      names.remove_prefix(std::min(end + 1, names.size()));
      const auto text = lookup_(name);
      if (text && !text->empty()) return {name, *text};
      if (first.name.empty()) first.name = name;
    }
    return first;
  }

  Setting require(std::string_view names) const {
    Setting setting = find(names);
    const Setting marker = find(launcher_.marker);
    OSLO_CHECK_AS(config, setting, marker.name, "=", marker.text, " is set (", launcher_.source,
                  ") but ", setting.name, " is not; set ", setting.name, ", or unset ", marker.name,
                  " to run alone");
    return setting;
  }

  int whole(const Setting& setting, int low, int high, const std::string& why = "") const {
    int value = 0;
    const char* const end = setting.text.data() + setting.text.size();
    const auto [stop, error] = std::from_chars(setting.text.data(), end, value);
    OSLO_CHECK_AS(config, error == std::errc() && stop == end, setting.name, "=", setting.text,
                  " (", launcher_.source, ") is not a whole number");
    OSLO_CHECK_AS(config, value >= low && value <= high, setting.name, "=", setting.text, " (",
                  launcher_.source, ") must lie in ", low, "..", high, why);
    return value;
  }

 private:
  const Launcher& launcher_;
  const LaunchEnvironment::Lookup& lookup_;
};

constexpr int kNoLimit = std::numeric_limits<int>::max();

std::string because(const Setting& setting) {
  return c10::str(" because ", setting.name, "=", setting.text);
}

// Entry `node` of Slurm's short form: "4(x2),2" means 4, 4, 2.
Setting tasks_on_node(const Setting& setting, int node) {
  std::string_view rest = setting.text;
  while (!rest.empty()) {
    const auto end = std::min(rest.find(','), rest.size());
    std::string_view entry = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    int repeats = 1;
    const auto times = entry.find("(x");
    if (times != std::string_view::npos) {
      std::from_chars(entry.data() + times + 2, entry.data() + entry.size(), repeats);
      entry = entry.substr(0, times);
    }
    node -= repeats;
    // --ntasks-per-node is one number for all hosts.
    if (node < 0 || rest.empty()) return {setting.name, std::string(entry)};
  }
  return setting;
}

// The first host of a Slurm list: "gpu[07,10-12],login" means gpu07.
std::string first_host(std::string_view list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const auto close = std::min(list.find(']', i), list.size());
    const auto stop = std::min(list.find_first_of(",-", i), close);
    host += list.substr(i + 1, stop - i - 1);
    i = close;
  }
  return host;
}

// The same port on every rank of a job, below the range from which systems hand out free ports.
int port_of_job(const std::string& job) {
  return 20000 + static_cast<int>(digest_of(job) % 10000U);
}

bool started_by(const Launcher& launcher, const LaunchEnvironment::Lookup& lookup) {
  const Reader reader(launcher, lookup);
  if (!reader.find(launcher.marker)) return false;
  // A shell inside an allocation, or a batch script, is a step of one task: its programs run alone.
  return std::string_view(launcher.source) != "Slurm" || reader.find(launcher.size).text != "1";
}

void read_ranks(const Launcher& launcher, const Reader& reader, LaunchEnvironment& result) {
  const Setting size = reader.require(launcher.size);
  result.size = reader.whole(size, 1, kNoLimit);
  result.rank = reader.whole(reader.require(launcher.rank), 0, result.size - 1, because(size));

  const Setting master = reader.find("MASTER_ADDR");
  const bool here = result.size == 1 || (master && is_loopback(master.text));
  const Setting local_rank = reader.find(launcher.local_rank);
  if (!reader.find(launcher.local_size) && (!local_rank || here)) {
    // Plain RANK and WORLD_SIZE, as container platforms set them: one process a host. OneFlow's
    // launcher, and torch's before 1.9, give LOCAL_RANK as well: enough where all ranks are here.
    result.local_rank = here ? result.rank : 0;
    result.local_size = here ? result.size : 1;
    if (local_rank) {
      const int given = reader.whole(local_rank, 0, result.size - 1, because(size));
      OSLO_CHECK_AS(config, given == result.rank, "LOCAL_RANK=", given,
                    " is not RANK=", result.rank, " (", launcher.source, "), so the ", result.size,
                    " ranks are not all on this host, where MASTER_ADDR=", master.text,
                    " says they meet; set MASTER_ADDR to an address of rank 0's host that all "
                    "hosts reach, and LOCAL_WORLD_SIZE to the number of ranks on this host");
    }
    return;
  }
  Setting local_size = reader.require(launcher.local_size);
  const Setting node = reader.find(launcher.node);
  if (*launcher.node != '\0') {
    local_size = tasks_on_node(local_size, node ? reader.whole(node, 0, kNoLimit) : 0);
  }
  result.local_size = reader.whole(local_size, 1, result.size, because(size));
  result.local_rank = reader.whole(reader.require(launcher.local_rank), 0, result.local_size - 1,
                                   because(local_size));
}

void read_meeting_point(const Launcher& launcher, const Reader& reader, LaunchEnvironment& result) {
  const bool is_slurm = std::string_view(launcher.source) == "Slurm";
  if (const Setting address = reader.find("MASTER_ADDR")) {
    result.master_address = address.text;
  } else if (result.local_size != result.size) {
    // Task 0 runs on the step's first host; srun itself may have been called on another one.
    const Setting hosts =
        is_slurm ? reader.find("SLURM_STEP_NODELIST SLURM_JOB_NODELIST") : Setting();
    const Setting caller = is_slurm ? reader.find("SLURM_LAUNCH_NODE_IPADDR") : Setting();
    result.master_address = hosts ? first_host(hosts.text) : caller.text;
    OSLO_CHECK_AS(
        config, !result.master_address.empty(), "MASTER_ADDR is not set (", launcher.source,
        ") and only ", result.local_size, " of the ", result.size,
        " ranks are known to run on this host; set MASTER_ADDR to the address of rank 0's "
        "host on every rank");
  }

  const Setting port = reader.find("MASTER_PORT");
  const Setting job = reader.find(launcher.job);
  OSLO_CHECK_AS(config, port || job, "MASTER_PORT is not set (", launcher.source, ", ", result.size,
                " ranks); set it to the same free port on every rank");
  if (port) {
    result.master_port = reader.whole(port, 1, 65535);
  } else {
    const Setting step = is_slurm ? reader.find(launcher.marker) : Setting();
    result.master_port = port_of_job(job.text + "." + step.text);
  }
}

// A RANK left over in a shell would make every process that mpirun or srun starts the same rank.
void check_agreement(const Launcher& chosen, const LaunchEnvironment& result,
                     const LaunchEnvironment::Lookup& lookup) {
  for (const Launcher& other : kLaunchers) {
    if (std::string_view(other.source) == chosen.source || !started_by(other, lookup)) continue;
    const Reader reader(other, lookup);
    LaunchEnvironment theirs;
    read_ranks(other, reader, theirs);
    OSLO_CHECK_AS(config, theirs.rank == result.rank && theirs.size == result.size,
                  "RANK=", result.rank, " and WORLD_SIZE=", result.size, " (", chosen.source,
                  ") contradict rank ", theirs.rank, " of ", theirs.size, " from ", other.source,
                  "; unset RANK and WORLD_SIZE, or unset ", other.marker, " to keep them");
    return;
  }
}

std::optional<std::string> process_variable(const std::string& name) {
  if (name == row_of(Variable::launcher).name) return read_variable(Variable::launcher);
  const char* const text = std::getenv(name.c_str());
  if (text == nullptr) return std::nullopt;
  return text;
}

}  // namespace

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

LaunchEnvironment LaunchEnvironment::detect() {
  return detect(process_variable);
}

LaunchEnvironment LaunchEnvironment::detect(const Lookup& lookup) {
  for (const Launcher& launcher : kLaunchers) {
    if (!started_by(launcher, lookup)) continue;
    LaunchEnvironment result;
    result.source = launcher.source;
    const Reader reader(launcher, lookup);
    read_ranks(launcher, reader, result);
    if (result.size > 1) read_meeting_point(launcher, reader, result);
    if (std::string_view(launcher.source) == "environment variables") {
      check_agreement(launcher, result, lookup);
    }
    if (std::string_view(launcher.size) == "WORLD_SIZE") {
      result.store_is_hosted_elsewhere = reader.find("TORCHELASTIC_USE_AGENT_STORE").text == "True";
      const Setting restarts = reader.find("TORCHELASTIC_RESTART_COUNT");
      if (restarts) result.restart_prefix = "/restart_" + restarts.text;
    }
    return result;
  }
  return {};
}

}  // namespace oslo
