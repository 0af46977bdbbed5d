#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oslo_cpp/exported/file/names.h"
#include "oslo_cpp/exported/graph/bound_argument.h"

namespace oslo::exported {

/// A node of a graph, ready to run: everything that can be found out beforehand has been.
class Step {
 public:
  explicit Step(std::string name) : name_(std::move(name)) {}
  virtual ~Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  virtual void run(Values& values) const = 0;
  /// The slots that it reads and writes.
  virtual std::vector<int> slots() const = 0;
  /// Names the node in errors.
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

/// A graph of torch.export, ready to run. It calls LibTorch's dispatcher node by node, in the order
/// of the file, so whatever meets operators there (autograd, autocast, layouts of a cut model)
/// meets these as it does those of a model in C++. A value is let go after its last use.
///
/// `run` may be called by several threads. It adds to each operator what its boxed call takes, and
/// no look-up by name.
class Graph {
 public:
  /// `inputs`: the slot of each input, -1 where no node reads it. `outputs` are what it returns.
  Graph(int slots, std::vector<int> inputs, std::vector<std::unique_ptr<Step>> steps,
        std::vector<BoundArgument> outputs);

  /// What the graph returns, for as many values as it has inputs.
  std::vector<c10::IValue> run(Values inputs) const;

  size_t inputs() const { return inputs_.size(); }
  size_t outputs() const { return outputs_.size(); }

 private:
  int slots_;
  std::vector<int> inputs_;
  std::vector<std::unique_ptr<Step>> steps_;
  std::vector<BoundArgument> outputs_;
  std::vector<std::vector<int>> last_uses_;  ///< of each step: the slots that none reads later
};

}  // namespace oslo::exported
