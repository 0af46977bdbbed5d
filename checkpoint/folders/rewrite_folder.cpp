#include "checkpoint/folders/rewrite_folder.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/folders/folder_checks.h"
#include "checkpoint/folders/folder_source.h"
#include "checkpoint/folders/open_source.h"
#include "checkpoint/formats/file_format.h"
#include "checkpoint/pretrained/family.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/pretrained/pretrained_shards.h"
#include "checkpoint/pretrained/transposed_matrices.h"
#include "checkpoint/resume/random_record.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/outside_text.h"
#include "checkpoint/storage/staging_directory.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

constexpr char kParallelConfig[] = "parallel_config.json";

Region region_of(const CheckpointIndex::Tensor& tensor, const CheckpointIndex::Cuts& cuts) {
  Region region(tensor.shape);
  for (const auto& [dim, rank, cut] : cuts) region.cut(dim, *cut, rank);
  return region;
}

class FolderWriter {
 public:
  FolderWriter(const FolderSource& from, const FolderPlan& plan, const fs::path& folder,
               FolderProgress& progress)
      : from_(from), plan_(plan), folder_(folder), progress_(progress) {
    index_.mesh = plan.mesh;
    index_.ties = from.index().ties;
    index_.optimizer = from.index().optimizer;
    index_.scheduler_steps = from.index().scheduler_steps;
    for (const auto& [name, tensor] : from.index().tensors) {
      index_.tensors[name] = {tensor.shape, tensor.dtype, {}};
    }
    if (plan.merged) follow_config();
  }

  void write() {
    for (const FolderPlan::File& file : plan_.files) write(file);
    for (const char* name : {"config.json", kExtraName}) copy(name);
    if (copy(kRandomName)) index_.random_mesh = from_.index().random_mesh;
    if (!plan_.merged && plan_.parallel_config.is_null()) copy(kParallelConfig);
    if (!plan_.parallel_config.is_null()) {
      write_text(kParallelConfig, plan_.parallel_config.dump(2) + "\n");
    }
    index_.write(folder_ / kIndexName);
  }

 private:
  /// Decides how merged tensors lie, so that what config.json says of them is true.
  void follow_config() {
    const std::optional<InputFile> file = from_.find_file(kConfigName);
    if (!file) return;
    const nlohmann::json config = read_pretrained_config(*file);
    const PretrainedFamily* family = find_family(config);
    if (family == nullptr) return;
    every_name_ = !says_tied(config, *family);
    if (!every_name_) check_ties(numbered_names(), *family);
    for (const std::string& name : transposed_matrices(*family, shapes_of(index_))) {
      index_.tensors.at(name).transposed = true;
    }
  }

  std::vector<std::pair<std::string, size_t>> numbered_names() const {
    std::vector<std::pair<std::string, size_t>> names;
    std::map<std::string, size_t> numbers;
    for (const auto& [name, _] : index_.tensors) {
      names.emplace_back(name, numbers.emplace(name, numbers.size()).first->second);
    }
    for (const auto& [name, tensor] : index_.ties) names.emplace_back(name, numbers.at(tensor));
    return names;
  }

  void write(const FolderPlan::File& file) {
    std::map<std::string, Region> regions;
    TensorStream stream;
    std::map<std::string, std::string> second_names;  // written as tensors of their own
    const std::string name = file_name(file.stem, file.format);
    const FileFormat& format = file_format(file.format);
    for (const FolderPlan::Part& part : file.parts) {
      const CheckpointIndex::Tensor& tensor = index_.tensors.at(part.tensor);
      const Region& region =
          regions.emplace(part.tensor, region_of(tensor, part.cuts)).first->second;
      TensorOutline outline{part.tensor, region.sizes(), tensor.dtype};
      if (tensor.transposed) std::swap(outline.shape[0], outline.shape[1]);
      stream.outlines.push_back(std::move(outline));
    }
    if (every_name_ && file.tied && !format.knows_ties) {
      for (const auto& [other, first] : index_.ties) {
        const auto outline =
            std::find_if(stream.outlines.begin(), stream.outlines.end(),
                         [&first = first](const auto& each) { return each.name == first; });
        if (outline == stream.outlines.end()) continue;
        second_names[other] = first;
        stream.outlines.push_back({other, outline->shape, outline->dtype});
      }
    }
    stream.give = [&](const std::string& written) {
      const auto second = second_names.find(written);
      const std::string& tensor = second == second_names.end() ? written : second->second;
      at::Tensor values = from_.read(tensor, regions.at(tensor));
      if (second == second_names.end()) progress_.add(values.nbytes());
      return index_.tensors.at(tensor).transposed ? values.t().contiguous() : values;
    };
    const fs::path path = folder_ / name;
    index_.files[name] = format.write_stream(path, stream, file.tied ? notes() : FileNotes());
    sync_file(path);
    for (const FolderPlan::Part& part : file.parts) {
      index_.tensors.at(part.tensor).parts.push_back({name, part.cuts});
    }
  }

  FileNotes notes() const {
    // Whoever finds this file without the index knows what is missing.
    return {.ties = index_.ties, .texts = {{kIndexName, "has the hash of this file"}}};
  }

  void write_text(const std::string& name, const std::string& text) {
    OutputFile file(folder_ / name);
    file.write(text.data(), text.size());
    file.close();
    sync_file(folder_ / name);
    index_.files[name] = file.contents();
  }

  /// Whether the folder has the file, which no tensor of the model lies in.
  bool copy(const std::string& name) {
    const std::optional<InputFile> file = from_.find_file(name);
    if (!file) return false;
    write_text(name, read_file(*file, file->size()));
    return true;
  }

  const FolderSource& from_;
  const FolderPlan& plan_;
  const fs::path folder_;
  FolderProgress& progress_;
  CheckpointIndex index_;
  bool every_name_ = false;  ///< whether a merged file that knows no ties has tied weights twice
};

}  // namespace

void rewrite_folder(const fs::path& from, const fs::path& to,
                    const std::function<FolderPlan(const CheckpointIndex&)>& plan_of,
                    const TellProgress& tell) {
  read_source(from, [&](const FolderSource& source) {
    check_target(from, source.path(), to);
    const FolderPlan plan = plan_of(source.index());
    uint64_t bytes = source.hashed_bytes();
    for (const FolderPlan::File& file : plan.files) {
      for (const FolderPlan::Part& part : file.parts) {
        const CheckpointIndex::Tensor& tensor = source.index().tensors.at(part.tensor);
        bytes += static_cast<uint64_t>(region_of(tensor, part.cuts).numel()) *
                 c10::elementSize(tensor.dtype);
      }
    }
    FolderProgress progress(tell, bytes);
    source.verify(progress);
    StagingDirectory staging(to);
    FolderWriter(source, plan, staging.path(), progress).write();
    staging.commit();
  });
}

}  // namespace oslo
