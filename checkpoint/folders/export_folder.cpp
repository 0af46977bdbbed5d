#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/folders/folder_checks.h"
#include "checkpoint/folders/folder_source.h"
#include "checkpoint/folders/open_source.h"
#include "checkpoint/folders/rewrite_folder.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/index/saved_optimizer.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/pretrained/pretrained_options.h"
#include "checkpoint/pretrained/pretrained_shards.h"
#include "checkpoint/pretrained/transposed_matrices.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/outside_text.h"
#include "checkpoint/storage/staging_directory.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

/// The names of the files to be: with their second ones where config.json ties nothing.
std::vector<std::pair<std::string, std::string>> names_of(const CheckpointIndex& index, bool tied) {
  std::vector<std::pair<std::string, std::string>> names;  // each with the one it is saved under
  for (const auto& [name, _] : index.tensors) {
    if (!is_optimizer_key(name)) names.emplace_back(name, name);
  }
  for (const auto& [name, tensor] : index.ties) {
    if (!tied) names.emplace_back(name, tensor);
  }
  return names;
}

}  // namespace

void rewrite_as_pretrained(const fs::path& from, const fs::path& to, const TellProgress& tell,
                           uint64_t max_shard_bytes) {
  read_source(from, [&](const FolderSource& source) {
    check_target(from, source.path(), to);
    const std::map<std::string, CheckpointIndex::Tensor>& tensors = source.index().tensors;
    const std::optional<InputFile> config_file = source.find_file(kConfigName);
    OSLO_CHECK(
        config_file, printable_path(from), " has no ", kConfigName,
        ", which says of which family the model is; save it with SaveOptions().config(json)");
    const nlohmann::json config = read_pretrained_config(*config_file);
    const PretrainedFamily& family =
        PretrainedOptions().family_of(config, printable_path(config_file->path()));
    PretrainedShards shards(max_shard_bytes);
    std::map<std::string, std::string> saved_as;
    const std::set<std::string> transposed = transposed_matrices(family, shapes_of(source.index()));
    for (const auto& [name, tensor] : names_of(source.index(), says_tied(config, family))) {
      const CheckpointIndex::Tensor& entry = tensors.at(tensor);
      TensorOutline outline{name, entry.shape, entry.dtype};
      if (transposed.count(tensor) > 0) std::reverse(outline.shape.begin(), outline.shape.end());
      shards.add(std::move(outline));
      saved_as[name] = tensor;
    }
    FolderProgress progress(tell, source.hashed_bytes() + shards.total_bytes());
    source.verify(progress);
    StagingDirectory staging(to);
    for (size_t i = 0; i < shards.count(); ++i) {
      const TensorStream stream{shards.outlines(i), [&](const std::string& name) {
                                  const std::string& tensor = saved_as.at(name);
                                  const Region whole(tensors.at(tensor).shape);
                                  const at::Tensor values = source.read(tensor, whole);
                                  progress.add(values.nbytes());
                                  return transposed.count(tensor) > 0 ? values.t().contiguous()
                                                                      : values;
                                }};
      write_safetensors(staging.path() / shards.file_name(i), stream);
    }
    const std::string text = config.dump(2) + "\n";
    OutputFile file(staging.path() / kConfigName);
    file.write(text.data(), text.size());
    file.close();
    shards.write_index(staging.path());
    staging.commit();
  });
}

}  // namespace oslo
