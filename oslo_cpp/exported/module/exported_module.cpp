#include "oslo_cpp/exported/module/exported_module.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <map>
#include <new>
#include <optional>
#include <utility>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/grid/random_states.h"
#include "oslo_cpp/exported/file/archive.h"
#include "oslo_cpp/exported/file/signature.h"
#include "oslo_cpp/exported/module/copy_state.h"
#include "oslo_cpp/exported/module/module_builder.h"
#include "oslo_cpp/exported/module/module_uses.h"
#include "oslo_cpp/exported/module/program.h"
#include "oslo_cpp/model/initialized_tag.h"

namespace oslo {

using exported::Archive;
using exported::Document;
using exported::ModuleBuilder;
using exported::Program;
using exported::Signature;
using Kind = exported::Signature::Kind;

struct ExportedModule::State {
  /// The program that `model` runs in the mode that it is in. A model of which a part is in
  /// training (dropout behind eval(), to sample) is run by the program of training, which asks each
  /// module.
  const Program& chosen(const ExportedModule& model) const;

  Program training;
  std::optional<Program> evaluation;
  /// What the programs' inputs are, by name.
  std::map<std::string, ParameterSlot> slots;
  /// The modules whose members the slots point to, also when others stand in the tree for them.
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules;
  bool evaluation_only = false;
  std::filesystem::path path, evaluation_path;
};

const Program& ExportedModule::State::chosen(const ExportedModule& model) const {
  if (!evaluation || model.is_training()) return training;
  for (const torch::nn::Module* asked : training.notes.asked) {
    if (asked->is_training()) return training;
  }
  return *evaluation;
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

/// Python's modules in their order, those without tensors, too.
void add_modules(ModuleBuilder& builder, const Document& graph_module) {
  for (const Document& entry : graph_module.member("module_call_graph").items()) {
    const std::string& path = entry.member("fqn").text();
    if (path.find('@') == std::string::npos) builder.add_module(path);  // "h.0@1": called again
  }
}

/// The program's inputs, whose parameters and buffers are registered in the tree.
void add_tensors(ModuleBuilder& builder, Archive& archive, const Signature& signature,
                 std::map<std::string, ParameterSlot>& slots, Program& program) {
  for (const Signature::Input& input : signature.inputs) {
    Program::Input added{input.kind, {}};
    switch (input.kind) {
      case Kind::parameter:
        slots[input.name] = added.slot =
            builder.add_parameter(input.name, archive.tensor(input.name));
        break;
      case Kind::buffer:
        added.slot.registered =
            builder.add_buffer(input.name, archive.tensor(input.name), input.saved);
        slots[input.name] = added.slot;
        break;
      case Kind::constant:
        added.slot.registered = archive.tensor(input.name);
        break;
      case Kind::user:
      case Kind::fixed:
        break;
    }
    program.inputs.push_back(std::move(added));
  }
}

/// The inputs of a second program of the model: its parameters and buffers are those of the tree.
/// Throws `Error` where they are not by name, size and type.
void share_tensors(Archive& archive, const Signature& signature,
                   const std::map<std::string, ParameterSlot>& slots, const std::string& other,
                   Program& program) {
  size_t shared = 0;
  for (const Signature::Input& input : signature.inputs) {
    Program::Input added{input.kind, {}};
    if (input.kind == Kind::constant) added.slot.registered = archive.tensor(input.name);
    if (input.kind == Kind::parameter || input.kind == Kind::buffer) {
      const auto known = slots.find(input.name);
      OSLO_CHECK(known != slots.end(), archive.file(), " has '", printable(input.name), "', which ",
                 other, " has not; export the same model twice, in training and in evaluation");
      const at::Tensor& tensor = known->second.in_use();
      OSLO_CHECK(tensor.sizes() == c10::IntArrayRef(archive.sizes(input.name)) &&
                     tensor.scalar_type() == archive.type(input.name),
                 archive.file(), " has '", printable(input.name), "' as ", archive.type(input.name),
                 " ", c10::IntArrayRef(archive.sizes(input.name)), ", ", other, " as ",
                 tensor.scalar_type(), " ", tensor.sizes(),
                 "; export the same model twice, in training and in evaluation");
      added.slot = known->second;
      ++shared;
    }
    program.inputs.push_back(std::move(added));
  }
  OSLO_CHECK(shared == slots.size(), archive.file(), " has ", shared, " of the ", slots.size(),
             " parameters and buffers of ", other,
             "; export the same model twice, in training and in evaluation");
}

std::string in_brackets(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + printable(name);
  return "(" + text + ")";
}

/// The forward of evaluation, from the file of its own, on the tensors of the model of `other`.
Program read_evaluation(const std::filesystem::path& path, const std::string& other,
                        const std::map<std::string, ParameterSlot>& slots, const Program& training,
                        const exported::ModuleAt& module_at) {
  Archive archive(path);
  const Document written = archive.program();
  const Document graph_module = written.member("graph_module").at(archive.file());
  const Signature signature = exported::read_signature(graph_module.member("signature"));
  Program program;
  share_tensors(archive, signature, slots, other, program);
  exported::read_graph(graph_module, written, signature, module_at, /*as_written=*/true, program);
  OSLO_CHECK(program.notes.flags_off > 0 || program.notes.flags_on == 0, archive.file(),
             " was exported in training; the second file is that of evaluation: call model.eval() "
             "in Python before torch.export.export");
  OSLO_CHECK(program.input_names == training.input_names, archive.file(), " takes the inputs ",
             in_brackets(program.input_names), ", ", other, " takes ",
             in_brackets(training.input_names), "; export both with the same example");
  return program;
}

/// Throws what went wrong with a file, led by its name.
template <typename Read>
auto led_by(const std::filesystem::path& path, const Read& read) try {
  return read();
} catch (const c10::Error& error) {
  fail(printable_path(path), " cannot be read: ", first_line(error.what_without_backtrace()));
} catch (const std::bad_alloc&) {
  fail(printable_path(path), " takes more memory than there is");
}

}  // namespace

ExportedModule::ExportedModule(std::unique_ptr<State> state)
    : PythonModule("Module"), state_(std::move(state)) {}

ExportedModule::~ExportedModule() = default;

std::vector<c10::IValue> ExportedModule::example_inputs() const {
  return state_->chosen(*this).check->examples();
}

const std::vector<std::string>& ExportedModule::input_names() const {
  return state_->training.input_names;
}

const std::vector<std::string>& ExportedModule::output_names() const {
  return state_->chosen(*this).output_names;
}

c10::IValue ExportedModule::forward(const std::vector<c10::IValue>& inputs) {
  const Program& program = state_->chosen(*this);
  program.check->check(inputs);
  exported::check_draws(program.notes.draws);
  std::vector<c10::IValue> outputs = program.run(inputs);
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
  auto copy = read(state_->path, state_->evaluation_path);
  exported::copy_state(*this, *copy, printable_path(state_->path));
  if (device) copy->to(*device);
  return copy;
}

std::shared_ptr<ExportedModule> ExportedModule::read(const std::filesystem::path& path,
                                                     const std::filesystem::path& evaluation) {
  auto state = std::make_unique<State>();
  std::shared_ptr<ExportedModule> model(new ExportedModule(nullptr));
  const exported::ModuleAt module_at = [&](std::string at) -> const torch::nn::Module& {
    while (!at.empty()) {
      const auto found = state->modules.find(at);
      if (found != state->modules.end()) return *found->second;
      at = exported::split_name(at).first;
    }
    return *model;
  };
  const std::string file = led_by(path, [&] {
    Archive archive(path);
    const Document program = archive.program();
    const Document graph_module = program.member("graph_module").at(archive.file());
    const Signature signature = exported::read_signature(graph_module.member("signature"));
    const exported::ModuleUses uses = exported::read_module_uses(
        graph_module.member("graph").at(archive.file()), weight_paths(signature));
    ModuleBuilder builder(*model, archive.file(), uses, sizes_by_module(archive, signature));
    {
      const RandomStates as_before({at::detail::getDefaultCPUGenerator()});
      add_modules(builder, graph_module);
      add_tensors(builder, archive, signature, state->slots, state->training);
    }
    state->modules = builder.modules();
    const auto root = uses.find("");
    if (root != uses.end()) {
      model->set_written_class(exported::short_class_name(root->second.class_name));
    }
    exported::read_graph(graph_module, program, signature, module_at, /*as_written=*/false,
                         state->training);
    return archive.file();
  });
  exported::GraphNotes& notes = state->training.notes;
  state->evaluation_only = notes.flags_off > 0 && notes.flags_on == 0;
  if (state->evaluation_only) notes.draws.clear();  // they are what evaluation does
  state->path = path;
  state->evaluation_path = evaluation;
  if (!evaluation.empty()) {
    OSLO_CHECK(!state->evaluation_only, file,
               " was exported in evaluation; the first file is that of training: call "
               "model.train() in Python before torch.export.export");
    state->evaluation = led_by(evaluation, [&] {
      return read_evaluation(evaluation, file, state->slots, state->training, module_at);
    });
  }
  const bool training = !state->evaluation_only;
  model->state_ = std::move(state);
  model->train(training);
  return model;
}

std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& path) {
  return ExportedModule::read(path, {});
}

std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& training,
                                              const std::filesystem::path& evaluation) {
  OSLO_CHECK(!evaluation.empty(), "load_exported: the path of the file of evaluation is empty");
  return ExportedModule::read(training, evaluation);
}

}  // namespace oslo
