#include "oslo_cpp/train_net/output_folder.h"

#include <filesystem>
#include <system_error>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "mpu/world/agreement.h"

namespace oslo {

namespace fs = std::filesystem;

std::string checkpoints_in(const std::string& output_dir) {
  return (fs::path(output_dir) / "checkpoints").string();
}

void check_output_folder(const World& world, const std::string& output_dir, bool resumes) {
  agree_on_success(world, "the output folder", [&] {
    const std::string checkpoints = checkpoints_in(output_dir);
    std::error_code ignored;
    const bool there = fs::exists(checkpoints, ignored);
    OSLO_CHECK_AS(config, resumes || !there, "the output folder ", printable_path(output_dir),
                  " has the checkpoints of another run: go on from them with --resume, or choose "
                  "another 'train.output_dir'");
    OSLO_CHECK_AS(config, !resumes || there, "--resume: there are no checkpoints in ",
                  printable_path(checkpoints),
                  "; leave --resume out, or set 'train.output_dir' to the folder of the run");
  });
}

}  // namespace oslo
