#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "oslo_cpp/exported/file/document.h"
#include "oslo_cpp/exported/file/signature.h"
#include "oslo_cpp/exported/graph/graph.h"
#include "oslo_cpp/exported/graph/graph_context.h"
#include "oslo_cpp/exported/module/input_check.h"
#include "parallelizers/modules/model_view.h"

namespace oslo::exported {

/// The forward of one file, ready to run on the tensors of a module tree. A model has one or two:
/// as it is in training, and as it is in evaluation.
struct Program {
  struct Input {
    Signature::Kind kind;
    ParameterSlot slot;  ///< of parameters, buffers and constants
  };

  /// Throws `Error` for inputs that the program was not exported for.
  std::vector<c10::IValue> run(const std::vector<c10::IValue>& given) const;

  std::vector<Input> inputs;  ///< one for each of the graph's
  std::vector<std::string> input_names, output_names;
  std::shared_ptr<const Graph> graph;
  std::optional<InputCheck> check;
  GraphNotes notes;
};

/// Fills in the graph of a program whose inputs are there already, and what belongs to it.
void read_graph(const Document& graph_module, const Document& program, const Signature& signature,
                const ModuleAt& module_at, bool as_written, Program& into);

/// Throws `Error` where nodes draw random numbers whose module is in evaluation, and which do not
/// ask it: evaluation would be another one than Python's, and noisy. Says what helps.
void check_draws(const std::vector<Draw>& draws);

}  // namespace oslo::exported
