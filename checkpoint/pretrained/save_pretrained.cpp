#include "checkpoint/pretrained/save_pretrained.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/pretrained/pretrained_shards.h"
#include "checkpoint/pretrained/transposed_matrices.h"
#include "checkpoint/state/model_state.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/hash.h"
#include "checkpoint/storage/outside_text.h"
#include "checkpoint/storage/staging_directory.h"
#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

/// A folder to be: its config and what lies in which file.
struct PretrainedPlan {
  nlohmann::json config;
  std::set<std::string> transposed;  ///< by the first names of the tensors
  PretrainedShards shards;
  std::unordered_map<std::string, size_t> numbers;  ///< of the tensors, by their names in the files
};

void name_dtype(nlohmann::json& config, const ModelState& state) {
  for (const ModelState::Tensor& tensor : state.tensors) {
    const c10::ScalarType type = tensor.local.scalar_type();
    if (!c10::isFloatingType(type)) continue;
    const std::string name = type == at::kFloat      ? "float32"
                             : type == at::kDouble   ? "float64"
                             : type == at::kHalf     ? "float16"
                             : type == at::kBFloat16 ? "bfloat16"
                                                     : "";
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (config.contains(key) && !name.empty()) config[key] = name;
    }
    return;
  }
}

PretrainedPlan plan_of(const ModelView& model, const ModelState& state, const fs::path& folder,
                       const PretrainedOptions& options) {
  options.check_saving();
  OSLO_CHECK(options.config() != nullptr || fs::exists(folder / kConfigName),
             "save_pretrained needs the model's config.json, which ", printable_path(folder),
             " has not; give it: PretrainedOptions().config(json)");
  nlohmann::json config =
      options.config() != nullptr ? *options.config() : read_pretrained_config(folder);
  const PretrainedFamily family = options.family_of(config, "config.json");
  const bool tied = says_tied(config, family);
  if (tied) check_ties(state.names, family);
  name_dtype(config, state);
  PretrainedPlan plan{std::move(config),
                      transposed_matrices(family, model, state),
                      PretrainedShards(static_cast<uint64_t>(options.max_shard_bytes())),
                      {}};
  for (const auto& [name, number] : state.names) {
    const ModelState::Tensor& tensor = state.tensors[number];
    if (tied && name != tensor.name) continue;
    TensorOutline outline{name, tensor.shape, tensor.local.scalar_type()};
    if (plan.transposed.count(tensor.name) > 0)
      std::reverse(outline.shape.begin(), outline.shape.end());
    plan.shards.add(std::move(outline));
    plan.numbers[name] = number;
  }
  OSLO_CHECK(plan.shards.count() > 0, "save_pretrained: the model has no parameter and no buffer");
  return plan;
}

/// Replacing a folder removes what is in it: only what a save of ours wrote may go.
void check_replaceable(const fs::path& folder) {
  if (!fs::is_directory(folder)) return;
  const auto any = [](auto member) {
    return "(" + each_format([&](const FormatNames& names) { return names.*member; }, "|") + ")";
  };
  static const std::regex ours(
      any(&FormatNames::model) + R"((-\d{5}-of-\d{5})?\.)" + any(&FormatNames::name) +
      R"(|model\.safetensors\.index\.json|(config|oslo_checkpoint|extra)\.json)");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    OSLO_CHECK(std::regex_match(name, ours), printable_path(folder), " holds ", printable(name),
               ", which save_pretrained would remove with all that is there; save into another "
               "folder");
  }
}

/// A shard's tensors as its file has them; collective. Only the keeper's are filled in.
StateDict gather(const ModelState& state, const PretrainedPlan& plan, size_t shard, bool keep) {
  StateDict tensors;
  for (const TensorOutline& outline : plan.shards.outlines(shard)) {
    const ModelState::Tensor& tensor = state.tensors[plan.numbers.at(outline.name)];
    const at::Tensor whole = full_tensor(tensor.local).detach();
    if (!keep) continue;
    tensors.insert(outline.name,
                   plan.transposed.count(tensor.name) > 0 ? whole.t().contiguous() : whole);
  }
  return tensors;
}

void write_config(const PretrainedPlan& plan, const fs::path& folder) {
  const std::string text = plan.config.dump(2) + "\n";
  OutputFile file(folder / kConfigName);
  file.write(text.data(), text.size());
  file.close();
}

void finish(const PretrainedPlan& plan, StagingDirectory& staging) {
  write_config(plan, staging.path());
  plan.shards.write_index(staging.path());
  staging.commit();
}

}  // namespace

void save_pretrained(const ModelView& model, const fs::path& folder,
                     const PretrainedOptions& options) {
  const ModelState state(model);
  for (const ModelState::Tensor& tensor : state.tensors) {
    OSLO_CHECK(!tensor.layout && tensor.stages.empty(), "'", tensor.name,
               "' is cut over ranks: save_pretrained needs what initialize returned, "
               "save_pretrained(parallel, folder), on every rank");
  }
  save_pretrained(model, MPU(World::alone()), folder, options);
}

void save_pretrained(const ModelView& model, const MPU& mpu, const fs::path& folder,
                     const PretrainedOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const World& world = mpu.world();
  const bool writes = world.rank() == 0;
  std::optional<ModelState> state;
  std::optional<PretrainedPlan> plan;
  agree_on_result(
      world, "save_pretrained: preparing",
      [&] {
        state.emplace(model);
        plan.emplace(plan_of(model, *state, folder, options));
        return c10::str(folder.string(), " ", options.max_shard_bytes(), " ", plan->config.dump(),
                        "\n", sha256(state->describe()));
      },
      "save different models, or call save_pretrained with different folders or options");
  std::optional<StagingDirectory> staging;
  const auto step = [&](const char* what, const std::function<void()>& body) {
    agree_on_success(world, c10::str("save_pretrained: ", what), [&] {
      if (writes) body();
    });
  };
  step("making the folder", [&] {
    check_replaceable(folder);
    staging.emplace(folder);
  });
  for (size_t i = 0; i < plan->shards.count(); ++i) {
    const StateDict tensors = gather(*state, *plan, i, writes);
    step("writing", [&] {
      const fs::path file = staging->path() / plan->shards.file_name(i);
      write_safetensors(file, tensors);
      sync_file(file);
    });
  }
  step("finishing", [&] { finish(*plan, *staging); });
}

}  // namespace oslo
