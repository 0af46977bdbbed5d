#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace oslo::exported {

/// A node that draws random numbers without asking whether its module is in training.
struct Draw {
  std::string where;        ///< the file and the node
  std::string module_path;  ///< that it came of, as Python has it
  const torch::nn::Module* module;
};

/// What is learned of a graph while it is built.
struct GraphNotes {
  int flags_on = 0, flags_off = 0;  ///< flags of training it was exported with (training_flag.h)
  std::vector<Draw> draws;
  /// The modules that nodes ask in every run whether they are in training, those of `draws` too.
  std::set<const torch::nn::Module*> asked;
};

/// The module at a Python path; the nearest one above it where the tree has none there.
using ModuleAt = std::function<const torch::nn::Module&(const std::string& path)>;

/// What a graph is built for.
struct GraphContext {
  ModuleAt module_at;
  /// Whether nodes do what they did when the program was exported, and ask nobody.
  bool as_written = false;
  /// Values that count the batches of a norm: they stand still in evaluation. Nodes that count add
  /// theirs while the graph is built.
  std::set<std::string>* counters = nullptr;
  GraphNotes* notes = nullptr;
};

}  // namespace oslo::exported
