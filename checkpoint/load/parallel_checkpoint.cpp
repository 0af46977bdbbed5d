#include "checkpoint/load/parallel_checkpoint.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/directory/read_together.h"
#include "checkpoint/load/load_state.h"
#include "checkpoint/pretrained/load_pretrained.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/resume/resumed_state.h"
#include "checkpoint/save/save_job.h"
#include "checkpoint/state/model_state.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "mpu/world/agreement.h"

namespace oslo {
void save_parallelized(const ModelView& model, const MPU& mpu, const std::string& directory,
                       const SaveOptions& options) {
  SaveJob job(model, mpu, directory, options);
  job.write([&](const std::string& what, const std::function<void()>& step) {
    agree_on_success(mpu.world(), "save_parallelized: " + what, step);
  });
}

std::shared_ptr<PendingSave> save_async(const ModelView& model, const MPU& mpu,
                                        const std::string& directory, const SaveOptions& options,
                                        SaveMemory& memory) {
  const World& world = mpu.world();
  if (!memory.group) {
    std::vector<int> ranks(world.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    memory.group = world.make_group("save", std::move(ranks));
  }
  auto job = std::make_unique<SaveJob>(model, mpu, directory, options);
  agree_on_success(world, "save_async: copying", [&] { job->take_snapshot(memory.tensors); });
  return std::make_shared<PendingSave>(std::move(job), memory.group);
}

void load_parallelized(const ModelView& model, const MPU& mpu, const std::string& directory,
                       const LoadOptions& options) {
  const World& world = mpu.world();
  const std::string kind = result_of_first(world, "from_parallelized: looking", [&] {
    return std::string(is_pretrained_folder(directory) ? "pretrained" : "checkpoint");
  });
  if (kind == "pretrained") {
    check_pretrained(directory, options);
    load_pretrained(model, mpu, directory, PretrainedOptions().convert(options.convert()));
    return;
  }
  std::optional<ModelState> state;
  std::optional<CheckpointFolder> folder;
  std::vector<at::Tensor> values;
  std::optional<ResumedState> resumed;
  const auto read = [&] {
    folder->verify(world.rank(), world.size());
    if (world.rank() == 0 && !folder->warning().empty()) {
      std::cerr << "oslo: " << folder->warning() << std::endl;
    }
    try {
      values = read_state(*state, *folder, options.convert());
    } catch (const Error& error) {
      fail(error.what(), " (this run: ", describe(mpu.grid()), ")");
    }
    resumed.emplace(model, *state, mpu, *folder, options);
  };
  const auto open = [&] {
    if (!state) state.emplace(model);
    folder.emplace(directory);
    return folder->identity();
  };
  read_together(world, "from_parallelized", directory,
                {open, [&] { return !folder->hashed().empty(); },
                 [&] { return folder->in_place(); }, read, [&] { return folder->is_as_opened(); }});
  copy_into(*state, values);
  resumed->commit();
}

}  // namespace oslo
