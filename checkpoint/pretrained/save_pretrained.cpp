#include "checkpoint/pretrained/save_pretrained.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/model_state.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/pretrained/weight_index.h"
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

/// What goes into one file: names, each with the number of its tensor.
using Shard = std::vector<std::pair<std::string, size_t>>;

/// A folder to be: its config and what lies in which file.
struct PretrainedPlan {
  nlohmann::json config;
  PretrainedFamily family;
  std::vector<Shard> shards;
  int64_t total_size = 0;

  std::string file_name(size_t shard) const {
    if (shards.size() == 1) return "model.safetensors";
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, shards.size());
    return name;
  }
};

int64_t bytes_of(const ModelState::Tensor& tensor) {
  return c10::multiply_integers(tensor.shape) *
         static_cast<int64_t>(c10::elementSize(tensor.local.scalar_type()));
}

/// Whether config.json says that a head has its table's values.
bool says_tied(const nlohmann::json& config, const PretrainedFamily& family) {
  const auto entry = config.find("tie_word_embeddings");
  return entry != config.end() && entry->is_boolean() ? entry->get<bool>() : family.tied;
}

/// Python would tie what the model has twice, and lose one of the two.
void check_ties(const ModelState& state, const PretrainedFamily& family) {
  const auto number_of = [&](const std::string& wanted) -> std::optional<size_t> {
    for (const auto& [name, number] : state.names) {
      if (name == wanted) return number;
    }
    return std::nullopt;
  };
  for (const auto& [head, table] : family.ties) {
    const auto one = number_of(head), other = number_of(table);
    OSLO_CHECK(!one || !other || *one == *other, "config.json ties '", head, "' to '", table,
               "', the model has the two apart; tie them in the model, or say "
               "\"tie_word_embeddings\": false");
  }
}

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

PretrainedPlan plan_of(const ModelState& state, const fs::path& folder,
                       const PretrainedOptions& options) {
  PretrainedPlan plan;
  OSLO_CHECK(options.config() != nullptr || fs::exists(folder / kConfigName),
             "save_pretrained needs the model's config.json, which ", printable_path(folder),
             " has not; give it: PretrainedOptions().config(json)");
  plan.config = options.config() != nullptr ? *options.config() : read_pretrained_config(folder);
  plan.family = options.family_of(plan.config, "config.json");
  const bool tied = says_tied(plan.config, plan.family);
  if (tied) check_ties(state, plan.family);
  name_dtype(plan.config, state);
  int64_t room = 0;
  for (const auto& [name, number] : state.names) {
    const ModelState::Tensor& tensor = state.tensors[number];
    if (tied && name != tensor.name) continue;
    const int64_t bytes = bytes_of(tensor);
    if (plan.shards.empty() || bytes > room) {
      plan.shards.emplace_back();
      room = options.max_shard_bytes();
    }
    plan.shards.back().emplace_back(name, number);
    room -= std::min(bytes, room);
    plan.total_size += bytes;
  }
  OSLO_CHECK(!plan.shards.empty(), "save_pretrained: the model has no parameter and no buffer");
  return plan;
}

/// Replacing a folder removes what is in it: only what a save of ours wrote may go.
void check_replaceable(const fs::path& folder) {
  if (!fs::is_directory(folder)) return;
  static const std::regex ours(
      R"((model|pytorch_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)|model\.safetensors\.index\.json)"
      R"(|(config|oslo_checkpoint|extra)\.json)");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    OSLO_CHECK(std::regex_match(name, ours), printable_path(folder), " holds ", printable(name),
               ", which save_pretrained would remove with all that is there; save into another "
               "folder");
  }
}

/// A shard's tensors as its file has them; collective. Only the keeper's are filled in.
StateDict gather(const ModelState& state, const PretrainedPlan& plan, const Shard& shard,
                 bool keep) {
  StateDict tensors;
  for (const auto& [name, number] : shard) {
    at::Tensor whole = full_tensor(state.tensors[number].local).detach();
    if (!keep) continue;
    const std::string& own = state.tensors[number].name;
    const bool transposed = whole.dim() == 2 && plan.family.lies_transposed(own);
    tensors.insert(name, transposed ? whole.t().contiguous() : whole);
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
  if (plan.shards.size() > 1) {
    WeightIndex index{plan.total_size, {}};
    for (size_t i = 0; i < plan.shards.size(); ++i) {
      for (const auto& [name, _] : plan.shards[i]) index.files[name] = plan.file_name(i);
    }
    index.write(staging.path() / "model.safetensors.index.json");
  }
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
        plan.emplace(plan_of(*state, folder, options));
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
  for (size_t i = 0; i < plan->shards.size(); ++i) {
    const StateDict tensors = gather(*state, *plan, plan->shards[i], writes);
    step("writing", [&] {
      const fs::path file = staging->path() / plan->file_name(i);
      write_safetensors(file, tensors);
      sync_file(file);
    });
  }
  step("finishing", [&] { finish(*plan, *staging); });
}

}  // namespace oslo
