#include "checkpoint/folders/open_source.h"

#include <iostream>
#include <string>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/directory/read_together.h"
#include "checkpoint/folders/folder_checks.h"
#include "checkpoint/folders/pretrained_source.h"
#include "checkpoint/pretrained/pretrained_folder.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

class CheckpointSource : public FolderSource {
 public:
  explicit CheckpointSource(const fs::path& path) : folder_(path) {
    if (!folder_.warning().empty()) std::cerr << "oslo: " << folder_.warning() << std::endl;
  }

  const fs::path& path() const override { return folder_.path(); }

  const CheckpointIndex& index() const override { return folder_.index(); }

  at::Tensor read(const std::string& name, const Region& wanted) const override {
    return folder_.read(name, wanted);
  }

  std::optional<InputFile> find_file(const std::string& name) const override {
    return folder_.find_any_file(name);
  }

  bool in_place() const override { return folder_.in_place(); }
  bool is_as_opened() const override { return folder_.is_as_opened(); }

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

void read_source(const fs::path& path, const std::function<void(const FolderSource&)>& read) {
  std::unique_ptr<FolderSource> source;
  const auto open = [&] {
    source = open_source(path);
    return std::string();
  };
  read_alone(path, {open, nullptr, [&] { return source->in_place(); }, [&] { read(*source); },
                    [&] { return source->is_as_opened(); }});
}

}  // namespace oslo
