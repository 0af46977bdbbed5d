#include "parallelizers/libtorch/graph_pass.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

namespace oslo {

bool pass_hands_gradients_out() {
  const auto* const nodes = torch::autograd::get_current_graph_task_exec_info();
  return nodes != nullptr && std::any_of(nodes->begin(), nodes->end(), [](const auto& node) {
           return node.second.captures_ != nullptr;
         });
}

void at_end_of_pass(std::function<void()> then) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(then));
}

}  // namespace oslo
