#include "checkpoint/load/load_state.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "checkpoint/directory/read_together.h"
#include "checkpoint/formats/tensors/tensor_bytes.h"
#include "checkpoint/pretrained/load_pretrained.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/resume/resumed_state.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/door/written_weights.h"

namespace oslo {
namespace {

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = to_plain_bytes(a);
  const at::Tensor right = to_plain_bytes(b);
  return left.nbytes() == right.nbytes() &&
         (left.nbytes() == 0 ||
          std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

/// What can be done where a matrix is the other's transpose.
const char* transpose_fix(const std::vector<int64_t>& there, const std::vector<int64_t>& wanted) {
  const bool transposes = there.size() == 2 && wanted.size() == 2 && there[0] == wanted[1] &&
                          there[1] == wanted[0] && there != wanted;
  return transposes ? ": one of the two is in Python's layout; load_pretrained takes a folder with "
                      "a config.json into models of both"
                    : "";
}

void check_nothing_is_left_over(const ModelState& state, const CheckpointFolder& folder) {
  std::unordered_set<std::string> wanted;
  for (const auto& [name, _] : state.names) wanted.insert(name);
  const auto check = [&](const std::string& name) {
    OSLO_CHECK(wanted.count(name) > 0, "the checkpoint ", printable_path(folder.path()), " has '",
               printable(name), "', the model has not; load it into the model that saved it");
  };
  for (const auto& [name, _] : folder.index().tensors) {
    if (!is_optimizer_key(name)) check(name);
  }
  for (const auto& [name, _] : folder.index().ties) check(name);
}

/// For each of the model's tensors the saved ones that its names stand for: one, unless the
/// checkpoint keeps apart what the model ties.
std::vector<std::vector<std::string>> saved_names(const ModelState& state,
                                                  const CheckpointFolder& folder) {
  std::vector<std::vector<std::string>> saved(state.tensors.size());
  for (const auto& [name, owner] : state.names) {
    std::vector<std::string>& known = saved[owner];
    const std::string* found = folder.resolve(name);
    if (found != nullptr && std::find(known.begin(), known.end(), *found) == known.end()) {
      known.push_back(*found);
    }
  }
  return saved;
}

}  // namespace

std::vector<at::Tensor> read_state(const ModelState& state, const CheckpointFolder& folder,
                                   bool convert) {
  const std::string where = printable_path(folder.path());
  // Everything that the index alone can tell comes before the first tensor is read.
  const std::vector<std::vector<std::string>> saved = saved_names(state, folder);
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const ModelState::Tensor& tensor = state.tensors[i];
    OSLO_CHECK(!saved[i].empty(), "the checkpoint ", where, " has no '", tensor.name,
               "', which the model has; load it into the model that saved it");
    for (const std::string& name : saved[i]) {
      const CheckpointIndex::Tensor& there = folder.index().tensors.at(name);
      OSLO_CHECK(there.shape == tensor.shape, "the checkpoint ", where, " has '", name,
                 "' of shape ", c10::IntArrayRef(there.shape), ", in the model it has ",
                 c10::IntArrayRef(tensor.shape), transpose_fix(there.shape, tensor.shape));
      const c10::ScalarType type = tensor.local.scalar_type();
      const bool floating = c10::isFloatingType(there.dtype) && c10::isFloatingType(type);
      OSLO_CHECK(there.dtype == type || (convert && floating), "the checkpoint ", where, " has '",
                 name, "' as ", there.dtype, ", the model has it as ", type,
                 floating ? "; convert the model with to() first, or load with "
                            "LoadOptions().convert(true)"
                          : "; convert the model with to() first");
    }
  }
  check_nothing_is_left_over(state, folder);

  std::vector<at::Tensor> values;
  for (size_t i = 0; i < saved.size(); ++i) {
    if (!state.tensors[i].here) {
      values.emplace_back();
      continue;
    }
    const LayoutPtr& layout = state.tensors[i].layout;
    values.push_back(folder.read(saved[i].front(), layout));
    for (size_t other = 1; other < saved[i].size(); ++other) {
      OSLO_CHECK(same_bytes(values.back(), folder.read(saved[i][other], layout)),
                 "the model ties '", saved[i].front(), "' and '", saved[i][other],
                 "', the checkpoint ", where, " has different values for them");
    }
  }
  return values;
}

void copy_into(const ModelState& state, const std::vector<at::Tensor>& values) {
  const c10::AutoGradMode no_grad(false);
  const BelowDoor below;
  for (size_t i = 0; i < values.size(); ++i) {
    at::Tensor to = state.tensors[i].local;
    if (!state.tensors[i].here) continue;
    const WrittenWeights written(to);
    to.copy_(values[i]);
  }
}

void load_state(const ModelView& model, const std::filesystem::path& path,
                const LoadOptions& options) {
  if (is_pretrained_folder(path)) {
    check_pretrained(path, options);
    load_pretrained(model, path, PretrainedOptions().convert(options.convert()));
    return;
  }
  const ModelState state(model);
  for (const ModelState::Tensor& tensor : state.tensors) {
    OSLO_CHECK(!tensor.layout && tensor.stages.empty(),
               "load_state loads into an ordinary model; '", tensor.name,
               "' is cut over ranks: use from_parallelized");
  }
  std::optional<CheckpointFolder> folder;
  std::vector<at::Tensor> values;
  std::optional<ResumedState> resumed;
  const auto open = [&] {
    folder.emplace(path);
    return folder->identity();
  };
  const auto read = [&] {
    folder->verify();
    if (!folder->warning().empty()) std::cerr << "oslo: " << folder->warning() << std::endl;
    values = read_state(state, *folder, options.convert());
    resumed.emplace(model, state, MPU(World::alone()), *folder, options);
  };
  read_alone(path, {open, nullptr, [&] { return folder->in_place(); }, read,
                    [&] { return folder->is_as_opened(); }});
  copy_into(state, values);
  resumed->commit();
}

}  // namespace oslo
