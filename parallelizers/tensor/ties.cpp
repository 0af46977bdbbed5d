#include "parallelizers/tensor/ties.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <unordered_map>

#include "parallelizers/tensor/module_tree.h"

namespace oslo {
namespace {

/// Whether the parameter had to be exchanged for `member`.
bool register_member(torch::nn::Module& module, const std::string& name, const at::Tensor& member) {
  at::Tensor* registered = registered_parameters(module).find(name);
  if (registered == nullptr || !registered->defined() || !member.defined()) return false;
  if (registered->is_same(member) || !member.is_leaf()) return false;
  *registered = member;
  return true;
}

}  // namespace

std::vector<Tie> find_ties(const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<Tie> uses;
  std::unordered_map<const c10::TensorImpl*, size_t> known;
  for (const ModuleEntry& entry : module_entries(root)) {
    for (const auto& parameter : entry.module->named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = parameter.value();
      const auto [found, first] = known.emplace(tensor.unsafeGetTensorImpl(), uses.size());
      if (first) uses.push_back({tensor, {}});
      uses[found->second].names.push_back(join_path(entry.path, parameter.key()));
    }
  }
  std::erase_if(uses, [](const Tie& use) { return use.names.size() < 2; });
  return uses;
}

std::vector<std::string> repair_ties(const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<std::string> repaired;
  for (const ModuleEntry& entry : module_entries(root)) {
    const auto repair = [&](const char* name, const at::Tensor& member) {
      if (register_member(*entry.module, name, member)) {
        repaired.push_back(join_path(entry.path, name));
      }
    };
    if (const auto* linear = entry.module->as<torch::nn::LinearImpl>()) {
      repair("weight", linear->weight);
      repair("bias", linear->bias);
    } else if (const auto* embedding = entry.module->as<torch::nn::EmbeddingImpl>()) {
      repair("weight", embedding->weight);
    }
  }
  return repaired;
}

}  // namespace oslo
