#include "oslo_cpp/training/show/text_file.h"

#include <fstream>
#include <system_error>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "mpu/world/agreement.h"

namespace oslo {

void write_text_once(const World& world, const std::filesystem::path& path,
                     const std::function<std::string()>& text) {
  agree_on_success(world, "a file of the training", [&] {
    if (world.rank() > 0) return;
    std::error_code failed;
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), failed);
    std::ofstream file(path);
    file << text();
    file.close();
    OSLO_CHECK_AS(file, !file.fail(), printable_path(path),
                  " cannot be written: check that its folder may be written, and that there is "
                  "room");
  });
}

}  // namespace oslo
