#include "tools/oslo/run/rank_options.h"

#include <cstdlib>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>

#include "tools/oslo/run/visible_devices.h"

namespace oslo::tool {

void add_rank_options(CLI::App& command, const std::shared_ptr<RunOptions>& options) {
  command
      .add_option("--grace", options->grace_seconds,
                  "seconds from SIGTERM to SIGKILL when the ranks are ended (default 5)")
      ->check(CLI::Range(0, 86400).description(""));
  command.add_flag_callback(
      "--no-prefix", [options] { options->prefix = false; },
      "do not put `[rank r] ` before each line");
  command.add_flag("--gpu-per-rank", options->gpu_per_rank,
                   "let each rank see one GPU, by CUDA_VISIBLE_DEVICES, which stays as it is "
                   "without this");
  command.add_flag_callback(
      "--malloc-defaults", [options] { options->keeps_freed_memory = false; },
      "leave malloc as it is: else freed memory is kept for the next step");
}

bool find_gpus(RunOptions& options, const char* command) {
  if (!options.gpu_per_rank) return true;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  try {
    options.gpus = one_gpu_each(
        options.ranks, visible == nullptr ? std::nullopt : std::optional<std::string>(visible));
    return true;
  } catch (const std::invalid_argument& error) {
    std::cerr << command << ": --gpu-per-rank: " << error.what() << "\n";
    return false;
  }
}

}  // namespace oslo::tool
