#include "checkpoint/folders/folder_checks.h"

#include <system_error>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

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

void check_target(const fs::path& from, const fs::path& read, const fs::path& to) {
  std::error_code ignored;
  const auto canonical = [&](const fs::path& path) {
    const fs::path whole = fs::weakly_canonical(fs::absolute(path, ignored), ignored);
    return whole.has_filename() ? whole : whole.parent_path();
  };
  const fs::path source = canonical(read), target = canonical(to);
  OSLO_CHECK_AS(file, target != source && !fs::equivalent(from, to, ignored), printable_path(to),
                " is the folder that is read; write to another one");
  // Beside a single file is where its results belong.
  if (fs::is_regular_file(from, ignored)) return;
  for (fs::path above = target; above.has_relative_path(); above = above.parent_path()) {
    OSLO_CHECK_AS(file, above != source, printable_path(to), " lies in ", printable_path(read),
                  ", the checkpoint that is read; write beside it");
  }
}

}  // namespace oslo
