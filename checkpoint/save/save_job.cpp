#include "checkpoint/save/save_job.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/directory/checkpoint_series.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/pretrained/family.h"
#include "checkpoint/pretrained/pretrained_shards.h"
#include "checkpoint/pretrained/transposed_matrices.h"
#include "checkpoint/resume/optimizer_state.h"
#include "checkpoint/resume/random_record.h"
#include "checkpoint/resume/scheduler_steps.h"
#include "checkpoint/save/joined_replicas.h"
#include "checkpoint/save/part_files.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/hash.h"
#include "checkpoint/storage/staging_directory.h"
#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> ties_of(const ModelState& state) {
  std::map<std::string, std::string> ties;
  for (const auto& [name, number] : state.names) {
    if (name != state.tensors[number].name) ties[name] = state.tensors[number].name;
  }
  return ties;
}

/// What all ranks must have said alike, for comparison.
std::string said(const std::string& directory, const SaveOptions& options) {
  return c10::str(directory, " ", options.merge_checkpoints(),
                  options.format() ? names_of(*options.format()).name : "", options.config(),
                  options.parallel_config(), options.extra(), options.optimizer() != nullptr,
                  options.scheduler() != nullptr, options.random_states(), " ",
                  options.step().value_or(-1), " ", options.keep_last());
}

void check_names(const ModelState& state) {
  for (const auto& [name, _] : state.names) {
    OSLO_CHECK(!is_optimizer_key(name), "the name '", name,
               "' is kept for the states of optimizers; rename the module");
  }
}

/// Of whole tensors, each once.
uint64_t bytes_of(const std::vector<ModelState::Tensor>& tensors) {
  uint64_t bytes = 0;
  for (const ModelState::Tensor& tensor : tensors) {
    bytes += c10::multiply_integers(tensor.shape) * tensor.local.element_size();
  }
  return bytes;
}

uint64_t bytes_of(const std::vector<at::Tensor>& values) {
  uint64_t bytes = 0;
  for (const at::Tensor& value : values) bytes += value.nbytes();
  return bytes;
}

/// Files of one copy of the model cannot hold what is cut over the copies.
bool all_inside_model(const ModelState& state, const RankGrid& grid, bool merge) {
  bool inside = true;
  for (const ModelState::Tensor& tensor : state.tensors) {
    if (!merge && is_over_replicas(tensor)) continue;  // they are joined
    inside = inside && cut_inside_model(tensor, grid);
    OSLO_CHECK(inside || merge, "'", tensor.name,
               "' is cut over ranks outside the tensor group, "
               "and a file per coordinate of one copy of the model cannot hold that; save with "
               "SaveOptions().merge_checkpoints(true)");
  }
  return inside;
}

}  // namespace

SaveJob::SaveJob(const ModelView& model, const MPU& mpu, const std::string& directory,
                 const SaveOptions& options)
    : options_(options), grid_(mpu.grid()), leads_(mpu.world().rank() == 0) {
  const c10::AutoGradMode no_grad(false);
  const World& world = mpu.world();
  const bool merge = options.merge_checkpoints();
  std::optional<ModelState> state;
  std::optional<OptimizerState> optimizer;

  // Nothing is written before all ranks are here with the same model and the same wish.
  agree_on_result(
      world, "save_parallelized: preparing",
      [&] {
        state.emplace(model);
        check_names(*state);
        OSLO_CHECK(!merge || options.parallel_config().is_null(),
                   "SaveOptions().parallel_config(...) lies beside the parts of a parallel "
                   "checkpoint, and a merged one is cut in no way; leave it out, or put it into "
                   "extra(...)");
        if (merge) follow_config(model, *state);
        if (options.optimizer() != nullptr) optimizer.emplace(*options.optimizer(), model, *state);
        return sha256(state->describe());
      },
      "save different models: the names, dtypes, shapes or cuts of their tensors differ");
  agree_on_result(
      world, "save_parallelized: agreeing", [&] { return said(directory, options); },
      "call save_parallelized with different folders or options");
  const bool inside = all_inside_model(*state, grid_, merge);

  std::vector<ModelState::Tensor> states;
  if (optimizer) {
    optimizer->agree(mpu);
    index_.optimizer = optimizer->saved();
  }
  if (options.scheduler() != nullptr) {
    index_.scheduler_steps = SchedulerSteps::of(*options.scheduler());
  }
  if (options.random_states()) {
    index_.random_mesh = grid_;
    world.decide("save_parallelized: random states", oslo::random_states(*state, mpu),
                 [&](const std::vector<std::string>& texts) {
                   random_ = join_random_states(texts);
                   return "";
                 });
  }
  agree_on_success(world, "save_parallelized: gathering", [&] {
    if (optimizer) states = optimizer->tensors();
    if (merge) return;
    const bool keeps = mpu.get_data_parallel_rank() == 0;
    join_replicas(state->tensors, keeps);
    join_replicas(states, keeps);
  });
  if (!merge) {
    index_.mesh = grid_;
    if (mpu.get_data_parallel_rank() == 0) collect_part(*state, states, mpu);
  } else if (!inside || mpu.get_data_parallel_rank() == 0) {
    collect_whole(*state, states);
  }
  folder_ = result_of_first(world, "save_parallelized: making the folder", [&] {
    if (!leads_) return std::string();
    OSLO_CHECK(options.step() || options.keep_last() == 0,
               "SaveOptions().keep_last(...) is for a series; give the step, too: "
               "SaveOptions().step(step)");
    if (options.step()) {
      series_ = directory;
      place_ = next_in_series(series_);
    }
    staging_ = std::make_unique<StagingDirectory>(
        options.step() ? step_folder(directory, *options.step()) : fs::path(directory));
    return staging_->path().string();
  });
  OSLO_CHECK(!folder_.empty(), "a dry run has no rank 0 that could save");
}

SaveJob::~SaveJob() = default;

void SaveJob::collect_part(const ModelState& state,
                           const std::vector<ModelState::Tensor>& optimizer, const MPU& mpu) {
  part_ = part_name(grid_, mpu.world().rank());
  const std::string file = file_name(part_, options_.format().value_or(kDefaultFormat));
  index_.ties = ties_of(state);
  const auto add = [&](const ModelState::Tensor& tensor) {
    if (!is_in_my_file(tensor, mpu)) return;
    model_.first_names.push_back(tensor.name);
    model_.values.push_back(plain_values(tensor.local));
    index_.tensors[tensor.name] = {
        tensor.shape, tensor.local.scalar_type(), {{file, cuts_of(tensor.layout)}}};
  };
  for (const ModelState::Tensor& tensor : state.tensors) add(tensor);
  for (const ModelState::Tensor& tensor : optimizer) add(tensor);
  // Ties of tensors that other files hold would point nowhere.
  std::erase_if(index_.ties, [&](const auto& tie) { return !index_.tensors.contains(tie.second); });
}

void SaveJob::collect_whole(const ModelState& state,
                            const std::vector<ModelState::Tensor>& optimizer) {
  const uint64_t of_model = bytes_of(state.tensors), of_optimizer = bytes_of(optimizer);
  progress_ = std::make_unique<SaveProgress>(
      "merging", leads_, of_model * (1 + merged_formats().size()) + 2 * of_optimizer);
  const auto gather = [&](const std::vector<ModelState::Tensor>& tensors, Tensors& into) {
    for (const ModelState::Tensor& tensor : tensors) {
      // One by one, and only rank 0 keeps them.
      at::Tensor whole = full_tensor(tensor.local).detach();
      if (!leads_) continue;
      progress_->add(whole.nbytes());
      const bool transposed = transposed_.count(tensor.name) > 0;
      into.first_names.push_back(tensor.name);
      into.values.push_back(transposed ? whole.t().contiguous() : std::move(whole));
      index_.tensors[tensor.name] = {tensor.shape, tensor.local.scalar_type(), {}, transposed};
    }
  };
  gather(state.tensors, model_);
  gather(optimizer, optimizer_);
  model_.names = state.names;
  index_.ties = ties_of(state);
}

void SaveJob::follow_config(const ModelView& model, const ModelState& state) {
  const PretrainedFamily* family = find_family(options_.config());
  if (family == nullptr) return;
  every_name_ = !says_tied(options_.config(), *family);
  if (!every_name_) check_ties(state.names, *family);
  transposed_ = transposed_matrices(*family, model, state);
}

void SaveJob::take_snapshot(std::vector<at::Tensor>& memory) {
  const c10::AutoGradMode no_grad(false);
  size_t next = 0;
  for (Tensors* tensors : {&model_, &optimizer_}) {
    for (at::Tensor& value : tensors->values) {
      if (next == memory.size()) memory.emplace_back();
      at::Tensor& copy = memory[next++];
      const bool fits = copy.defined() && copy.sizes() == value.sizes() &&
                        copy.scalar_type() == value.scalar_type();
      if (!fits) copy = at::empty(value.sizes(), value.options().device(at::kCPU));
      value = copy.copy_(value);
    }
  }
  memory.resize(next);
}

void SaveJob::write_tensors(const std::string& file, Format format, const StateDict& state,
                            const FileNotes& notes) {
  const fs::path path = folder_ / file;
  index_.files[file] = file_format(format).write(path, state, notes);
  sync_file(path);
}

void SaveJob::write_part() {
  const Format format = options_.format().value_or(kDefaultFormat);
  StateDict mine;
  for (size_t i = 0; i < model_.values.size(); ++i) {
    mine.insert(model_.first_names[i], model_.values[i]);
  }
  const uint64_t bytes = bytes_of(model_.values);
  SaveProgress progress("saving", leads_, bytes);
  write_tensors(file_name(part_, format), format, mine);
  progress.add(bytes);
  // A small index of what this file holds, for rank 0 to join; it goes before the folder has its
  // name, so that it need not be on the disk.
  CheckpointIndex own = index_;
  own.optimizer.reset();
  own.write(folder_ / (part_ + ".json"));
}

void SaveJob::join_parts() {
  const CheckpointIndex own = std::exchange(index_, CheckpointIndex());
  index_.mesh = grid_;
  index_.optimizer = own.optimizer;
  index_.scheduler_steps = own.scheduler_steps;
  index_.random_mesh = own.random_mesh;
  const std::vector<std::vector<int>> copies = grid_.groups("model");
  for (const int rank : copies.front()) {
    const fs::path contents = folder_ / (part_name(grid_, rank) + ".json");
    index_.add(CheckpointIndex::read(contents));
    fs::remove(contents);
  }
}

std::vector<Format> SaveJob::merged_formats() const {
  std::vector<Format> formats;
  for (const FormatNames& names : kFormats) {
    if (options_.format() ? names.format == *options_.format() : names.unasked) {
      formats.push_back(names.format);
    }
  }
  return formats;
}

void SaveJob::write_merged() {
  const auto once = [&](const Tensors& tensors) {
    StateDict state;
    for (size_t i = 0; i < tensors.values.size(); ++i) {
      state.insert(tensors.first_names[i], tensors.values[i]);
    }
    return state;
  };
  const auto list = [&](const Tensors& tensors, const std::string& file) {
    for (const std::string& name : tensors.first_names) {
      index_.tensors.at(name).parts.push_back({file, {}});
    }
  };
  StateDict all;
  for (const auto& [name, number] : model_.names) all.insert(name, model_.values[number]);
  for (const Format format : merged_formats()) {
    const bool all_names = every_name_ || file_format(format).knows_ties;
    // Whoever finds this file without the index knows what is missing.
    const FileNotes notes{.ties = index_.ties,
                          .texts = {{kIndexName, "has the hash of this file"}}};
    write_tensors(model_file(format), format, all_names ? all : once(model_), notes);
    list(model_, model_file(format));
    progress_->add(bytes_of(model_.values));
  }
  // Beside the model's file, which other programs open.
  if (!optimizer_.values.empty()) {
    const std::string file = file_name("optimizer", kDefaultFormat);
    write_tensors(file, kDefaultFormat, once(optimizer_));
    list(optimizer_, file);
    progress_->add(bytes_of(optimizer_.values));
  }
}

void SaveJob::write_json(const char* name, const nlohmann::json& json) {
  if (json.is_null()) return;
  const std::string text = json.dump(2) + "\n";
  OutputFile file(folder_ / name);
  file.write(text.data(), text.size());
  file.close();
  index_.files[name] = file.contents();
}

void SaveJob::finish() {
  const bool merge = options_.merge_checkpoints();
  if (!merge) join_parts();
  write_json("config.json", options_.config());
  if (!merge) write_json("parallel_config.json", options_.parallel_config());
  write_json(kExtraName, options_.extra());
  write_json(kSeriesName, place_);
  if (!random_.empty()) {
    index_.files[kRandomName] = write_safetensors(folder_ / kRandomName, random_);
  }
  index_.write(folder_ / kIndexName);
  const auto commit = [&] { staging_->commit(); };
  if (!options_.step()) return commit();
  publish_step(series_, *options_.step(), options_.keep_last(), commit);
}

void SaveJob::write(const AgreeOnStep& agree) {
  agree("writing", [&] {
    if (!options_.merge_checkpoints()) {
      if (!part_.empty()) write_part();
    } else if (leads_) {
      write_merged();
    }
  });
  agree("finishing", [&] {
    if (leads_) finish();
  });
}

}  // namespace oslo
