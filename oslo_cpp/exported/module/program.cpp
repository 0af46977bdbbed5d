#include "oslo_cpp/exported/module/program.h"

#include <torch/nn/module.h>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "oslo_cpp/exported/graph/build_graph.h"
#include "oslo_cpp/exported/module/module_builder.h"

namespace oslo::exported {
namespace {

/// The counters of batch norms, which evaluation leaves as they are.
std::set<std::string> batch_counters(const Signature& signature) {
  std::set<std::string> counters;
  for (const Signature::Input& input : signature.inputs) {
    const bool counts = split_name(input.name).second == "num_batches_tracked";
    if (input.kind == Signature::Kind::buffer && counts) counters.insert(input.value);
  }
  return counters;
}

}  // namespace

std::vector<c10::IValue> Program::run(const std::vector<c10::IValue>& given) const {
  Values values;
  values.reserve(inputs.size());
  size_t next = 0;
  for (const Input& input : inputs) {
    if (input.kind == Signature::Kind::user) {
      values.push_back(given[next++]);
    } else if (input.kind == Signature::Kind::fixed) {
      values.emplace_back();
    } else {
      // A typed member is what the layer computes with, as in a model in C++.
      values.emplace_back(input.slot.member != nullptr ? *input.slot.member
                                                       : input.slot.registered);
    }
  }
  return graph->run(std::move(values));
}

void read_graph(const Document& graph_module, const Document& program, const Signature& signature,
                const ModuleAt& module_at, bool as_written, Program& into) {
  const std::string& file = graph_module.where();
  const Document graph = graph_module.member("graph").at(file);
  std::set<std::string> counters;
  if (!as_written) counters = batch_counters(signature);
  GraphContext context;
  context.module_at = module_at;
  context.as_written = as_written;
  context.counters = &counters;
  context.notes = &into.notes;
  into.graph = build_graph(graph, context);
  OSLO_CHECK(into.graph->inputs() == signature.inputs.size(), file, ": its graph has ",
             into.graph->inputs(), " inputs and its signature ", signature.inputs.size());
  for (const Signature::Input& input : signature.inputs) {
    if (input.kind == Signature::Kind::user) into.input_names.push_back(input.name);
  }
  into.check.emplace(graph, program.find("range_constraints"), into.input_names);
  into.output_names = output_names(graph_module, into.graph->outputs());
}

void check_draws(const std::vector<Draw>& draws) {
  const Draw* first = nullptr;
  size_t count = 0;
  for (const Draw& draw : draws) {
    if (draw.module->is_training()) continue;
    if (first == nullptr) first = &draw;
    ++count;
  }
  if (first == nullptr) return;
  const std::string more = count == 1 ? "" : c10::str(", and ", count - 1, " more");
  fail("forward in evaluation: ", first->where, " of ",
       first->module_path.empty() ? "the model itself" : printable(first->module_path), more,
       ", draws random numbers as in training, since the file does not say what evaluation does; "
       "export the model once more behind model.eval(), and load both: "
       "oslo::load_exported(\"train.pt2\", \"eval.pt2\")");
}

}  // namespace oslo::exported
