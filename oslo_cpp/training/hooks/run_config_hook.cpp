#include "oslo_cpp/training/hooks/run_config_hook.h"

#include <torch/version.h>

#include <filesystem>
#include <sstream>

#include "oslo_cpp/training/show/text_file.h"

namespace oslo {

std::string run_config_text(const ParallelModel& parallel) {
  const MPU& mpu = parallel.mpu();
  std::ostringstream text;
  text << "// LibTorch " << TORCH_VERSION << ", " << mpu.world().size() << " ranks:";
  for (const char* axis : {"data", "tensor", "pipeline"}) {
    text << " " << axis << " " << mpu.size(axis);
  }
  text << "\n" << nlohmann::ordered_json::parse(parallel.config().to_string()).dump(2) << "\n";
  return text.str();
}

void RunConfigHook::before_train(Training& training) {
  write_text_once(training.mpu().world(), std::filesystem::path(folder_) / "run_config.json",
                  [&] { return run_config_text(training.parallel); });
}

}  // namespace oslo
