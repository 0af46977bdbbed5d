#include "oslo_cpp/exported/graph/graph.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "mpu/base/error.h"

namespace oslo::exported {

Graph::Graph(int slots, std::vector<int> inputs, std::vector<std::unique_ptr<Step>> steps,
             std::vector<BoundArgument> outputs)
    : slots_(slots),
      inputs_(std::move(inputs)),
      steps_(std::move(steps)),
      outputs_(std::move(outputs)),
      last_uses_(steps_.size()) {
  std::vector<bool> done(slots_, false);
  for (const BoundArgument& output : outputs_) {
    for (const int slot : output.slots()) done[slot] = true;
  }
  for (size_t i = steps_.size(); i-- > 0;) {
    for (const int slot : steps_[i]->slots()) {
      if (!done[slot]) last_uses_[i].push_back(slot);
      done[slot] = true;
    }
  }
}

std::vector<c10::IValue> Graph::run(Values inputs) const {
  OSLO_CHECK(inputs.size() == inputs_.size(), "a graph of ", inputs_.size(), " inputs got ",
             inputs.size());
  Values values(slots_);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i] >= 0) values[inputs_[i]] = std::move(inputs[i]);
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    try {
      steps_[i]->run(values);
    } catch (c10::Error& error) {
      error.add_context("in the exported program, " + steps_[i]->name());
      throw;
    }
    for (const int slot : last_uses_[i]) values[slot] = c10::IValue();
  }
  std::vector<c10::IValue> outputs;
  outputs.reserve(outputs_.size());
  for (const BoundArgument& output : outputs_) outputs.push_back(output.value(values));
  return outputs;
}

}  // namespace oslo::exported
