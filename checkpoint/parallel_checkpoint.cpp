#include "checkpoint/parallel_checkpoint.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_index.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/torch_bin.h"
#include "checkpoint/load_state.h"
#include "checkpoint/model_state.h"
#include "checkpoint/pretrained/load_pretrained.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/hash.h"
#include "checkpoint/storage/outside_text.h"
#include "checkpoint/storage/staging_directory.h"
#include "mpu/agreement.h"
#include "mpu/error.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

/// The file of a rank: its coordinates on the axes that cut layers and on the pipeline,
/// "pytorch_model_tp_0_pp_0" or "pytorch_model_row_0_column_1_pp_0". Copies of the model share one.
std::string part_name(const RankGrid& grid, int rank) {
  std::vector<std::string> axes = grid.layer_axes();
  if (axes.empty()) axes = {"tensor"};
  std::string name = "pytorch_model";
  for (const std::string& axis : axes) {
    name += c10::str("_", axis == "tensor" ? "tp" : axis, "_", grid.coordinate(axis, rank));
  }
  return c10::str(name, "_pp_", grid.coordinate("pipeline", rank));
}

/// The axes of the grid along which a tensor's parts differ.
std::set<std::string> axes_that_cut(const ModelState::Tensor& tensor, const RankGrid& grid) {
  std::set<std::string> names;
  for (int i = 0; tensor.layout && i < tensor.layout->axes(); ++i) {
    if ((*tensor.layout)[i].whole()) continue;
    const std::vector<int>& ranks = tensor.layout->group(i)->ranks();
    for (const Axis& axis : grid.axes()) {
      const auto elsewhere = [&](int rank) {
        return grid.coordinate(axis.name, rank) != grid.coordinate(axis.name, ranks.front());
      };
      if (std::any_of(ranks.begin(), ranks.end(), elsewhere)) names.insert(axis.name);
    }
  }
  return names;
}

/// Whether the files of one copy of the model hold all of the tensor.
bool cut_inside_model(const ModelState::Tensor& tensor, const RankGrid& grid) {
  for (const std::string& axis : axes_that_cut(tensor, grid)) {
    if (axis == "data" || axis == "pipeline") return false;
  }
  return true;
}

/// Whether this rank's file holds the tensor: of the ranks with the same part, the first does.
bool is_in_my_file(const ModelState::Tensor& tensor, const MPU& mpu) {
  const StageRanks& ranks = mpu.tensor_mesh()->stage_ranks;
  const int holder = tensor.stages.empty() ? 0 : ranks.rank_of(tensor.stages.first());
  for (int i = 0; tensor.layout && i < tensor.layout->axes(); ++i) {
    if ((*tensor.layout)[i].whole() && tensor.layout->group(i)->rank() != 0) return false;
  }
  const std::set<std::string> cut = axes_that_cut(tensor, mpu.grid());
  for (const Axis& axis : mpu.grid().axes()) {
    const int owner = axis.name == "pipeline" ? holder : 0;
    if (axis.name == "data" || cut.count(axis.name) != 0) continue;
    if (mpu.rank(axis.name) != owner) return false;
  }
  return true;
}

/// Waits until the file is on the disk, and adds it to `index`.
std::string list_file(const fs::path& file, CheckpointIndex& index) {
  sync_file(file);
  index.files[file.filename()] = {fs::file_size(file), sha256_file(file)};
  return file.filename();
}

/// Writes `state` to `path` plus the format's extension, waits until it is on the disk, and adds it
/// to `index`.
std::string write_tensors(const fs::path& path, const std::string& format, const StateDict& state,
                          SafetensorsMetadata metadata, CheckpointIndex& index) {
  const fs::path file = path.string() + "." + format;
  if (format == "bin") {
    write_torch_bin(file, state);
  } else {
    write_safetensors(file, state, std::move(metadata));
  }
  return list_file(file, index);
}

std::map<std::string, std::string> ties_of(const ModelState& state) {
  std::map<std::string, std::string> ties;
  for (const auto& [name, number] : state.names) {
    if (name != state.tensors[number].name) ties[name] = state.tensors[number].name;
  }
  return ties;
}

/// This coordinate's file, and beside it a small index of what it holds, for rank 0 to join.
void write_part(const ModelState& state, const MPU& mpu, const fs::path& folder,
                const std::string& format) {
  const std::string name = part_name(mpu.grid(), mpu.world().rank());
  StateDict mine;
  for (const ModelState::Tensor& tensor : state.tensors) {
    if (is_in_my_file(tensor, mpu)) mine.insert(tensor.name, plain_values(tensor.local));
  }
  CheckpointIndex index;
  index.mesh = mpu.grid();
  index.ties = ties_of(state);
  const std::string file = write_tensors(folder / name, format, mine, {}, index);
  for (const ModelState::Tensor& tensor : state.tensors) {
    if (!mine.contains(tensor.name)) continue;
    index.tensors[tensor.name] = {
        tensor.shape, tensor.local.scalar_type(), {{file, cuts_of(tensor.layout)}}};
  }
  // Ties of tensors that other files hold would point nowhere.
  std::erase_if(index.ties, [&](const auto& tie) { return !mine.contains(tie.second); });
  const fs::path contents = folder / (name + ".json");
  index.write(contents);
  sync_file(contents);
}

CheckpointIndex join_parts(const MPU& mpu, const fs::path& folder) {
  CheckpointIndex index;
  index.mesh = mpu.grid();
  const std::vector<std::vector<int>> copies = index.mesh.groups("model");
  for (const int rank : copies.front()) {
    const fs::path contents = folder / (part_name(index.mesh, rank) + ".json");
    index.add(CheckpointIndex::read(contents));
    fs::remove(contents);
  }
  return index;
}

/// Every whole tensor by number; collective. Only the keeper's list is filled.
std::vector<at::Tensor> gather(const ModelState& state, bool keep) {
  std::vector<at::Tensor> whole;
  for (const ModelState::Tensor& tensor : state.tensors) {
    at::Tensor full = full_tensor(tensor.local).detach();
    if (keep) whole.push_back(std::move(full));
  }
  return whole;
}

CheckpointIndex write_merged(const ModelState& state, const std::vector<at::Tensor>& whole,
                             const fs::path& folder, const std::string& format) {
  CheckpointIndex index;
  index.ties = ties_of(state);
  std::vector<std::string> files;
  if (format != "bin") {
    StateDict once;
    for (size_t i = 0; i < whole.size(); ++i) once.insert(state.tensors[i].name, whole[i]);
    SafetensorsMetadata metadata = index.ties;
    // Whoever finds this file without the index knows what is missing.
    metadata[kIndexName] = "has the hash of this file";
    files.push_back(write_tensors(folder / "model", "safetensors", once, metadata, index));
  }
  if (format != "safetensors") {
    StateDict all;
    for (const auto& [name, number] : state.names) all.insert(name, whole[number]);
    files.push_back(write_tensors(folder / "pytorch_model", "bin", all, {}, index));
  }
  for (const ModelState::Tensor& tensor : state.tensors) {
    auto& entry = index.tensors[tensor.name];
    entry = {tensor.shape, tensor.local.scalar_type(), {}};
    for (const std::string& file : files) entry.parts.push_back({file, {}});
  }
  return index;
}

void write_text(const fs::path& path, const std::string& text) {
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.close();
}

}  // namespace

void save_parallelized(const ModelView& model, const MPU& mpu, const std::string& directory,
                       const SaveOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const World& world = mpu.world();
  const bool merge = options.merge_checkpoints();
  std::optional<ModelState> state;
  std::optional<StagingDirectory> staging;
  const auto step = [&](const char* what, const std::function<void()>& body) {
    agree_on_success(world, c10::str("save_parallelized: ", what), body);
  };

  // Nothing is written before all ranks are here with the same model and the same wish.
  agree_on_result(
      world, "save_parallelized: preparing",
      [&] {
        state.emplace(model);
        return sha256(state->describe());
      },
      "save different models: the names, dtypes, shapes or cuts of their tensors differ");
  agree_on_result(
      world, "save_parallelized: agreeing",
      [&] {
        return c10::str(directory, " ", merge, options.format(), options.config(),
                        options.parallel_config(), options.extra());
      },
      "call save_parallelized with different folders or options");
  bool inside = true;
  for (const ModelState::Tensor& tensor : state->tensors) {
    inside = inside && cut_inside_model(tensor, mpu.grid());
    OSLO_CHECK(inside || merge, "'", tensor.name,
               "' is cut over ranks outside the tensor group, "
               "and a file per coordinate of one copy of the model cannot hold that; save with "
               "SaveOptions().merge_checkpoints(true)");
  }
  const fs::path folder = result_of_first(world, "save_parallelized: making the folder", [&] {
    if (world.rank() != 0) return std::string();
    staging.emplace(directory);
    return staging->path().string();
  });
  OSLO_CHECK(!folder.empty(), "a dry run has no rank 0 that could save");

  CheckpointIndex index;
  const bool replica = mpu.get_data_parallel_rank() == 0;
  step("writing", [&] {
    if (!merge) {
      if (replica) {
        write_part(*state, mpu, folder,
                   options.format().empty() ? "safetensors" : options.format());
      }
    } else if (!inside || replica) {
      const std::vector<at::Tensor> whole = gather(*state, world.rank() == 0);
      if (world.rank() == 0) index = write_merged(*state, whole, folder, options.format());
    }
  });
  step("finishing", [&] {
    if (world.rank() != 0) return;
    if (!merge) index = join_parts(mpu, folder);
    const auto write_beside = [&](const char* name, const nlohmann::json& json) {
      if (json.is_null()) return;
      write_text(folder / name, json.dump(2) + "\n");
      list_file(folder / name, index);
    };
    write_beside("config.json", options.config());
    if (!merge) write_beside("parallel_config.json", options.parallel_config());
    write_beside(kExtraName, options.extra());
    index.write(folder / kIndexName);
    staging->commit();
  });
}

void load_parallelized(const ModelView& model, const MPU& mpu, const std::string& directory,
                       const LoadOptions& options) {
  const World& world = mpu.world();
  const std::string kind = result_of_first(world, "from_parallelized: looking", [&] {
    return std::string(is_pretrained_folder(directory) ? "pretrained" : "checkpoint");
  });
  if (kind == "pretrained") {
    OSLO_CHECK(options.extra() == nullptr, printable_path(directory),
               " is a folder of Hugging Face's, which has no ", kExtraName, ": load it without");
    load_pretrained(model, mpu, directory, PretrainedOptions().convert(options.convert()));
    return;
  }
  std::optional<ModelState> state;
  std::vector<at::Tensor> values;
  nlohmann::json extra;
  const auto read = [&] {
    state.emplace(model);
    const CheckpointFolder folder(directory);
    folder.verify(world.rank(), world.size());
    if (world.rank() == 0 && !folder.warning().empty()) {
      std::cerr << "oslo: " << folder.warning() << std::endl;
    }
    try {
      values = read_state(*state, folder, options.convert());
    } catch (const Error& error) {
      fail(error.what(), " (this run: ", describe(mpu.grid()), ")");
    }
    if (options.extra() != nullptr) extra = folder.read_extra();
    return folder.identity();
  };
  agree_on_result(world, "from_parallelized", read,
                  "see different checkpoints at " + directory +
                      ": one of them was replaced or not copied to every machine");
  copy_into(*state, values);
  if (options.extra() != nullptr) *options.extra() = std::move(extra);
}

}  // namespace oslo
