#include "checkpoint/folders/folder_checks.h"

#include <system_error>

#include "checkpoint/storage/outside_text.h"
#include "mpu/error.h"

namespace oslo {

namespace fs = std::filesystem;

void verify_hashes(const CheckpointFolder& folder, FolderProgress& progress) {
  const int files = static_cast<int>(folder.hashed().size());
  int number = 0;
  for (const auto& [_, file] : folder.hashed()) {
    folder.verify(number++, files);
    progress.add(file.bytes);
  }
}

void check_folders(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  OSLO_CHECK(!fs::equivalent(from, to, ignored), printable_path(to),
             " is the folder that is read; write to another one");
}

}  // namespace oslo
