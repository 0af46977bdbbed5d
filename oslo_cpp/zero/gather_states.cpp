#include "oslo_cpp/zero/gather_states.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/zero/flat_memory.h"
#include "parallelizers/libtorch/keys.h"

namespace oslo {
namespace {

using Json = nlohmann::json;

/// {"7": {"numbers": {"step": 5}, "tensors": {"exp_avg": 6}}}: by the parameter's place, the
/// tensors with their types.
std::string describe(const std::vector<GatheredState>& states) {
  Json text = Json::object();
  for (size_t i = 0; i < states.size(); ++i) {
    if (!states[i].own) continue;
    Json& entry = text[std::to_string(i)];
    entry["numbers"] = states[i].own->numbers;
    entry["tensors"] = Json::object();
    for (const auto& [field, tensor] : states[i].own->tensors) {
      entry["tensors"][field] = static_cast<int>(tensor.scalar_type());
    }
  }
  return text.dump();
}

std::vector<std::string> texts_of_all(Group& group, const std::string& own) {
  const std::vector<int64_t> lengths = group.exchange(static_cast<int64_t>(own.size()));
  at::Tensor bytes = at::empty({static_cast<int64_t>(own.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
  const at::Tensor all = group.all_gather(bytes, 0, lengths);
  std::vector<std::string> texts;
  const auto* next = static_cast<const char*>(all.const_data_ptr());
  for (const int64_t length : lengths) {
    texts.emplace_back(next, length);
    next += length;
  }
  return texts;
}

at::Tensor joined(Group& group, const GatheredState& state, const std::string& field,
                  c10::ScalarType type) {
  const at::TensorOptions options = at::TensorOptions(type).device(state.parameter.device());
  at::Tensor piece;
  if (state.own) {
    for (const auto& [name, tensor] : state.own->tensors) {
      if (name != field) continue;
      // A whole tensor may have strides of its own: SGD's momentum has those of a gradient.
      const bool whole = tensor.sizes() == state.parameter.sizes();
      piece = whole ? flat_like(tensor, state.strides) : flat_memory(tensor);
    }
  }
  const int64_t elements = state.sizes[group.rank()];
  if (!piece.defined()) piece = at::empty({0}, options);
  OSLO_CHECK(piece.numel() == elements, "the optimizer's ", field, " of a parameter of shape ",
             state.parameter.sizes(), " has ", piece.numel(),
             " elements here, where this rank's "
             "share is ",
             elements, "; step the optimizer on all ranks");
  const at::Tensor whole = at::empty_strided(state.parameter.sizes(), state.strides, options);
  flat_memory(whole).copy_(group.all_gather(piece, 0, state.sizes));
  return whole;
}

}  // namespace

SharedStates::Whole gather_states(Group& group, const std::vector<GatheredState>& states) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  Json known = Json::object();
  for (const std::string& text : texts_of_all(group, describe(states))) {
    const Json of_rank = Json::parse(text);
    for (const auto& [place, entry] : of_rank.items()) {
      const auto [found, fresh] = known.emplace(place, entry);
      OSLO_CHECK(fresh || *found == entry,
                 "data replicas have different optimizer states of a "
                 "parameter of shape ",
                 states[std::stoul(place)].parameter.sizes(), "; step the optimizer on all ranks");
    }
  }
  SharedStates::Whole whole;
  for (size_t i = 0; i < states.size(); ++i) {
    const auto entry = known.find(std::to_string(i));
    if (entry == known.end()) continue;
    OptimizerKind::State& state = whole[states[i].parameter.unsafeGetTensorImpl()];
    state.numbers = (*entry)["numbers"].get<OptimizerKind::Numbers>();
    for (const auto& [field, type] : (*entry)["tensors"].items()) {
      const auto scalar_type = static_cast<c10::ScalarType>(type.get<int>());
      state.tensors.emplace_back(field, joined(group, states[i], field, scalar_type));
    }
  }
  return whole;
}

}  // namespace oslo
