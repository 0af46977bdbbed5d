#include "checkpoint/folders/folder_checks.h"

#include <system_error>

#include "checkpoint/pretrained/pretrained_folder.h"
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
  OSLO_CHECK(!is_pretrained_folder(from), printable_path(from),
             " is a folder of Hugging Face's, whose tensors may lie transposed under other names: "
             "load it into the model that it is of (from_parallelized, load_state), and save that");
  std::error_code ignored;
  OSLO_CHECK(!fs::equivalent(from, to, ignored), printable_path(to),
             " is the folder that is read; write to another one");
}

}  // namespace oslo
