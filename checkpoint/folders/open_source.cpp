#include "checkpoint/folders/open_source.h"

#include <system_error>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/folders/folder_checks.h"
#include "checkpoint/folders/pretrained_source.h"
#include "checkpoint/pretrained/pretrained_folder.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

class CheckpointSource : public FolderSource {
 public:
  explicit CheckpointSource(const fs::path& path) : folder_(path) {}

  const fs::path& path() const override { return folder_.path(); }

  const CheckpointIndex& index() const override { return folder_.index(); }

  at::Tensor read(const std::string& name, const Region& wanted) const override {
    return folder_.read(name, wanted);
  }

  std::optional<fs::path> find_file(const std::string& name) const override {
    std::error_code ignored;
    const bool indexed = !folder_.hashed().empty();  // else nobody says what belongs to it
    if (!indexed && fs::is_regular_file(folder_.path() / name, ignored)) {
      return folder_.path() / name;
    }
    return folder_.find_file(name);
  }

  uint64_t hashed_bytes() const override { return folder_.hashed_bytes(); }
  void verify(FolderProgress& progress) const override { verify_hashes(folder_, progress); }

 private:
  CheckpointFolder folder_;
};

}  // namespace

std::unique_ptr<FolderSource> open_source(const fs::path& path) {
  if (is_pretrained_folder_of_any_family(path)) return std::make_unique<PretrainedSource>(path);
  return std::make_unique<CheckpointSource>(path);
}

}  // namespace oslo
