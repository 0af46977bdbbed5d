#include "oslo_cpp/exported/exported_module.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <map>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/storage/outside_text.h"
#include "mpu/error.h"
#include "mpu/random_states.h"
#include "mpu/text.h"
#include "oslo_cpp/exported/archive.h"
#include "oslo_cpp/exported/build_graph.h"
#include "oslo_cpp/exported/copy_state.h"
#include "oslo_cpp/exported/input_check.h"
#include "oslo_cpp/exported/module_builder.h"
#include "oslo_cpp/exported/module_uses.h"
#include "oslo_cpp/exported/signature.h"
#include "oslo_cpp/initialized_tag.h"

namespace oslo {

using exported::Archive;
using exported::Document;
using exported::ModuleBuilder;
using exported::Signature;
using Kind = exported::Signature::Kind;

struct ExportedModule::State {
  struct Input {
    Kind kind;
    ParameterSlot slot;  ///< of parameters, buffers and constants
  };

  void add_tensors(ModuleBuilder& builder, Archive& archive, const Signature& signature);
  exported::Values inputs_of_graph(const std::vector<c10::IValue>& given) const;

  std::vector<Input> inputs;  ///< one for each of the graph's
  std::vector<std::string> input_names, output_names;
  std::shared_ptr<const exported::Graph> graph;
  std::optional<exported::InputCheck> check;
  /// The modules whose members `inputs` points to, also when others stand in the tree for them.
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules;
  bool evaluation_only = false;
  std::filesystem::path path;
};

void ExportedModule::State::add_tensors(ModuleBuilder& builder, Archive& archive,
                                        const Signature& signature) {
  for (const Signature::Input& input : signature.inputs) {
    Input added{input.kind, {}};
    switch (input.kind) {
      case Kind::parameter:
        added.slot = builder.add_parameter(input.name, archive.tensor(input.name));
        break;
      case Kind::buffer:
        added.slot.registered =
            builder.add_buffer(input.name, archive.tensor(input.name), input.saved);
        break;
      case Kind::constant:
        added.slot.registered = archive.tensor(input.name);
        break;
      case Kind::user:
        input_names.push_back(input.name);
        break;
      case Kind::fixed:
        break;
    }
    inputs.push_back(std::move(added));
  }
}

exported::Values ExportedModule::State::inputs_of_graph(
    const std::vector<c10::IValue>& given) const {
  exported::Values values;
  values.reserve(inputs.size());
  size_t next = 0;
  for (const Input& input : inputs) {
    if (input.kind == Kind::user) {
      values.push_back(given[next++]);
    } else if (input.kind == Kind::fixed) {
      values.emplace_back();
    } else {
      // A typed member is what the layer computes with, as in a model in C++.
      values.emplace_back(input.slot.member != nullptr ? *input.slot.member
                                                       : input.slot.registered);
    }
  }
  return values;
}

namespace {

/// The sizes of the tensors of each module, which say whether a layer of LibTorch's can hold them.
std::map<std::string, exported::LayerSizes> sizes_by_module(const Archive& archive,
                                                            const Signature& signature) {
  std::map<std::string, exported::LayerSizes> sizes;
  for (const Signature::Input& input : signature.inputs) {
    if (input.kind != Kind::parameter && input.kind != Kind::buffer) continue;
    const auto [path, leaf] = exported::split_name(input.name);
    sizes[path][leaf] = archive.sizes(input.name);
  }
  return sizes;
}

/// The paths of modules by the names that their weights have in the graph.
std::map<std::string, std::string> weight_paths(const Signature& signature) {
  std::map<std::string, std::string> paths;
  for (const Signature::Input& input : signature.inputs) {
    const auto [path, leaf] = exported::split_name(input.name);
    if (input.kind == Kind::parameter && leaf == "weight") paths[input.value] = path;
  }
  return paths;
}

/// The counters of batch norms, which evaluation leaves as they are.
std::set<std::string> batch_counters(const Signature& signature) {
  std::set<std::string> counters;
  for (const Signature::Input& input : signature.inputs) {
    const bool counts = exported::split_name(input.name).second == "num_batches_tracked";
    if (input.kind == Kind::buffer && counts) counters.insert(input.value);
  }
  return counters;
}

/// Python's modules in their order, those without tensors, too.
void add_modules(ModuleBuilder& builder, const Document& graph_module) {
  for (const Document& entry : graph_module.member("module_call_graph").items()) {
    const std::string& path = entry.member("fqn").text();
    if (path.find('@') == std::string::npos) builder.add_module(path);  // "h.0@1": called again
  }
}

}  // namespace

ExportedModule::ExportedModule(std::unique_ptr<State> state)
    : PythonModule("Module"), state_(std::move(state)) {}

ExportedModule::~ExportedModule() = default;

std::vector<c10::IValue> ExportedModule::example_inputs() const {
  return state_->check->examples();
}

const std::vector<std::string>& ExportedModule::input_names() const {
  return state_->input_names;
}

const std::vector<std::string>& ExportedModule::output_names() const {
  return state_->output_names;
}

c10::IValue ExportedModule::forward(const std::vector<c10::IValue>& inputs) {
  state_->check->check(inputs);
  std::vector<c10::IValue> outputs = state_->graph->run(state_->inputs_of_graph(inputs));
  if (outputs.size() == 1) return std::move(outputs.front());
  return c10::ivalue::Tuple::create(std::move(outputs));
}

void ExportedModule::train(bool on) {
  OSLO_CHECK(!on || !state_->evaluation_only,
             "train: the program was exported in evaluation, and says nothing of training; call "
             "model.train() in Python before torch.export.export");
  torch::nn::Module::train(on);
}

std::shared_ptr<torch::nn::Module> ExportedModule::clone(
    const std::optional<torch::Device>& device) const {
  OSLO_CHECK(!is_initialized(ModelView(*this)),
             "clone: the model is parallel; clone it before initialize");
  auto copy = load_exported(state_->path);
  exported::copy_state(*this, *copy, printable_path(state_->path));
  if (device) copy->to(*device);
  return copy;
}

std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& path) try {
  Archive archive(path);
  const Document program = archive.program();
  const Document graph_module = program.member("graph_module").at(archive.file());
  const Document graph = graph_module.member("graph").at(archive.file());
  const Signature signature = exported::read_signature(graph_module.member("signature"));
  const exported::ModuleUses uses = exported::read_module_uses(graph, weight_paths(signature));

  auto state = std::make_unique<ExportedModule::State>();
  std::shared_ptr<ExportedModule> model(new ExportedModule(nullptr));
  ModuleBuilder builder(*model, archive.file(), uses, sizes_by_module(archive, signature));
  {
    const RandomStates as_before({at::detail::getDefaultCPUGenerator()});
    add_modules(builder, graph_module);
    state->add_tensors(builder, archive, signature);
  }
  state->modules = builder.modules();
  const auto root = uses.find("");
  if (root != uses.end()) {
    model->set_written_class(exported::short_class_name(root->second.class_name));
  }

  exported::FlagCount flags;
  exported::GraphContext context;
  std::set<std::string> counters = batch_counters(signature);
  context.counters = &counters;
  context.flags = &flags;
  context.module_at = [&](std::string at) -> const torch::nn::Module& {
    while (!at.empty()) {
      const auto found = state->modules.find(at);
      if (found != state->modules.end()) return *found->second;
      at = exported::split_name(at).first;
    }
    return *model;
  };
  state->graph = exported::build_graph(graph, context);
  OSLO_CHECK(state->graph->inputs() == signature.inputs.size(), archive.file(), ": its graph has ",
             state->graph->inputs(), " inputs and its signature ", signature.inputs.size());
  state->check.emplace(graph, program.find("range_constraints"), state->input_names);
  state->output_names = exported::output_names(graph_module, state->graph->outputs());
  state->path = path;
  state->evaluation_only = flags.off > 0 && flags.on == 0;
  const bool training = !state->evaluation_only;
  model->state_ = std::move(state);
  model->train(training);
  return model;
} catch (const c10::Error& error) {
  fail(printable_path(path), " cannot be read: ", first_line(error.what_without_backtrace()));
} catch (const std::bad_alloc&) {
  fail(printable_path(path), " takes more memory than there is");
}

}  // namespace oslo
