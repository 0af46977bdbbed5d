#include "oslo_cpp/script/script_module.h"

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/exported/module/module_builder.h"
#include "parallelizers/modules/module_tree.h"

namespace oslo {
namespace {

using Script = torch::jit::Module;

/// "torch.nn.modules.linear.Linear" of
/// "__torch__.torch.nn.modules.linear.___torch_mangle_3.Linear".
std::string python_class(const Script& module) {
  const auto name = module.type()->name();
  std::string text;
  for (const std::string& part : name ? name->atoms() : std::vector<std::string>{"Module"}) {
    if (part == "__torch__" || part.starts_with("___torch_mangle_")) continue;
    text += (text.empty() ? "" : ".") + part;
  }
  return text;
}

/// Layers that are known by their tensors alone. Others keep their options (a stride, say) in the
/// script's code.
bool is_plain_layer(const std::string& class_name) {
  return class_name == "torch.nn.modules.linear.Linear" ||
         class_name == "torch.nn.modules.sparse.Embedding";
}

/// Throws where the code of a block sets an attribute of the module itself that is a tensor of its.
void check_sets_no_tensor(const torch::jit::Block& block, const Script& module,
                          const std::string& path) {
  for (const torch::jit::Node* node : block.nodes()) {
    for (const torch::jit::Block* inner : node->blocks()) {
      check_sets_no_tensor(*inner, module, path);
    }
    if (node->kind() != c10::prim::SetAttr) continue;
    const auto type = node->input(0)->type()->cast<c10::ClassType>();
    const std::string name = node->s(c10::attr::name);
    const auto slot = type ? type->findAttributeSlot(name) : std::nullopt;
    if (!slot || !(type->is_parameter(*slot) || type->is_buffer(*slot))) continue;
    fail("a TorchScript module cannot be trained here whose code replaces a tensor: ",
         join_path(path, name), " is assigned in ", python_class(module), "; write into it (self.",
         name, ".copy_(value)) and script it again");
  }
}

/// Builds the tree of modules that stand for those of a script.
class Mirror {
 public:
  Mirror(torch::nn::Module& root, const Script& script) : root_(root) { find("", script); }

  void build() {
    exported::ModuleBuilder builder(root_, "the TorchScript module", uses_, sizes_);
    for (const auto& [path, module] : modules_) add(builder, path, module);
  }

 private:
  void find(const std::string& path, const Script& module) {
    modules_.emplace_back(path, module);
    const std::string name = python_class(module);
    uses_[path].class_name = name;
    if (is_plain_layer(name)) {
      for (const auto& each : module.named_parameters(/*recurse=*/false)) {
        sizes_[path][each.name] = each.value.sizes().vec();
      }
    } else {
      // No layer of LibTorch's, under the class's own name.
      uses_[path].class_name = exported::short_class_name(name);
    }
    for (const auto& method : module.get_methods()) {
      check_sets_no_tensor(*method.graph()->block(), module, path);
    }
    for (const auto& child : module.named_children()) {
      find(join_path(path, child.name), child.value);
    }
  }

  static void add(exported::ModuleBuilder& builder, const std::string& path, const Script& module) {
    builder.add_module(path);
    for (const auto& each : module.named_parameters(/*recurse=*/false)) {
      builder.add_parameter(join_path(path, each.name), each.value);
    }
    for (const auto& each : module.named_buffers(/*recurse=*/false)) {
      builder.add_buffer(join_path(path, each.name), each.value, /*saved=*/true);
    }
  }

  torch::nn::Module& root_;
  std::vector<std::pair<std::string, Script>> modules_;  ///< with their paths, parents first
  exported::ModuleUses uses_;
  std::map<std::string, exported::LayerSizes> sizes_;
};

}  // namespace

ScriptModule::ScriptModule(const Script& script)
    : PythonModule(exported::short_class_name(python_class(script))), script_(script) {
  OSLO_CHECK(script_.find_method("forward"), "the TorchScript module ", written_class(),
             " has no forward");
  OSLO_CHECK(script_.parameters().size() > 0, "the TorchScript module ", written_class(),
             " has no parameters: torch.jit.freeze and torch.jit.optimize_for_inference make "
             "constants of them; save what torch.jit.script gave");
  Mirror(*this, script_).build();
  torch::nn::Module::train(script_.is_training());
}

c10::IValue ScriptModule::forward(std::vector<c10::IValue> inputs) {
  const torch::jit::GraphOptimizerEnabledGuard off(false);
  return script_.forward(std::move(inputs));
}

void ScriptModule::train(bool on) {
  script_.train(on);
  torch::nn::Module::train(on);
}

std::string ScriptModule::no_stages() const {
  return "a TorchScript module runs on one pipeline stage: its interpreter computes with values of "
         "other stages; export it (oslo::load_exported), or use tensor and data parallelism";
}

ParallelModel initialize(const Script& script, const Config& config,
                         const InitializeOptions& options) {
  InitializeOptions how = options;
  if (!how.world.defined()) how.world = World::from_environment();
  std::shared_ptr<ScriptModule> model;
  agree_on_success(how.world, "initialize", [&] {
    OSLO_CHECK(!torch::jit::getGraphExecutorOptimize(),
               "initialize: TorchScript's optimizations are on, whose derivatives take sizes of a "
               "rank's part for those of the whole; call "
               "torch::jit::setGraphExecutorOptimize(false) on every thread that runs the module, "
               "or run it through oslo::ScriptModule");
    model = std::make_shared<ScriptModule>(script);
  });
  return initialize(model, config, how);
}

}  // namespace oslo
