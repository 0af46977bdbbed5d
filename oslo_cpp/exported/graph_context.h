#pragma once

#include <functional>
#include <set>
#include <string>

namespace torch::nn {
class Module;
}

namespace oslo::exported {

/// Which flags of training a program was exported with (training_flag.h).
struct FlagCount {
  int on = 0, off = 0;
};

/// What a graph is built for.
struct GraphContext {
  /// The module at a Python path; the nearest one above it where the tree has none there.
  std::function<const torch::nn::Module&(const std::string& path)> module_at;
  /// Values that count the batches of a norm: they stand still in evaluation. Nodes that count add
  /// theirs while the graph is built.
  std::set<std::string>* counters = nullptr;
  FlagCount* flags = nullptr;
};

}  // namespace oslo::exported
