#include "checkpoint/folders/pretrained_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "checkpoint/pretrained/pretrained_options.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

const PretrainedFamily& family_of(const PretrainedFolder& folder) {
  const std::string where = printable_path(folder.path() / kConfigName);
  try {
    return PretrainedOptions().family_of(folder.config(), where);
  } catch (const Error& error) {
    fail(error.what(), " to load_pretrained, and save the model; or name a file of the folder (",
         printable_path(folder.path() / folder.tensors().begin()->second.file),
         ") in its place, whose tensors are taken as they lie");
  }
}

/// Transformers calls a model without a head "BertModel", others "BertForMaskedLM",
/// "GPT2LMHeadModel", "GPT2DoubleHeadsModel".
bool has_head(const nlohmann::json& config) {
  const auto entry = config.find("architectures");
  if (entry == config.end() || !entry->is_array() || entry->empty()) return false;
  const nlohmann::json& first = entry->front();
  if (!first.is_string()) return false;
  const std::string name = first.get<std::string>();
  return !name.ends_with("Model") || name.ends_with("HeadModel") || name.ends_with("HeadsModel");
}

/// What the bare model's files lack in the names of a model with a head.
std::string missing_prefix(const PretrainedFolder& folder, const PretrainedFamily& family) {
  const auto& tensors = folder.tensors();
  const bool there = std::any_of(tensors.begin(), tensors.end(), [&](const auto& entry) {
    return entry.first.starts_with(family.prefix);
  });
  return there || !has_head(folder.config()) ? "" : family.prefix;
}

/// Whether a name is that of a head's parameter, which has no prefix.
bool is_of_head(const std::string& name, const PretrainedFamily& family) {
  return std::any_of(family.ties.begin(), family.ties.end(),
                     [&](const auto& tie) { return tie.first == name; });
}

}  // namespace

PretrainedSource::PretrainedSource(const fs::path& path) : folder_(path) {
  OSLO_CHECK(!folder_.tensors().empty(), printable_path(path), " has no tensor: it is no model");
  const PretrainedFamily& family = family_of(folder_);
  const std::string prefix = missing_prefix(folder_, family);
  for (const auto& [name, entry] : folder_.tensors()) {
    if (family.is_spare(name)) continue;
    const std::string today = family.names_for(name).front();
    const std::string full = is_of_head(today, family) ? today : prefix + today;
    const bool transposed = entry.shape.size() == 2 && family.lies_transposed(full);
    const auto [known, fresh] = origins_.emplace(full, Origin{name, transposed});
    OSLO_CHECK(fresh, printable_path(path), " has '", printable(full), "' twice: as '",
               printable(known->second.name), "' and as '", printable(name),
               "'; take one out of the files");
    std::vector<int64_t> shape = entry.shape;
    if (transposed) std::swap(shape[0], shape[1]);
    index_.tensors[full] = {std::move(shape), entry.dtype, {{entry.file, {}}}};
  }
}

at::Tensor PretrainedSource::read(const std::string& name, const Region& wanted) const {
  const Origin& origin = origins_.at(name);
  return folder_.read(origin.name, wanted, origin.transposed);
}

std::optional<InputFile> PretrainedSource::find_file(const std::string& name) const {
  if (name != kConfigName) return std::nullopt;
  return folder_.config_file();
}

}  // namespace oslo
