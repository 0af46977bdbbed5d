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

/// The engine calls what callbacks queue behind those that were queued before.
void at_end_of_pass(EndOfPass round, std::function<void()> then) {
  if (round != EndOfPass::own) {
    const auto before = static_cast<EndOfPass>(static_cast<int>(round) - 1);
    then = [before, then = std::move(then)] { at_end_of_pass(before, then); };
  }
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(then));
}

}  // namespace oslo
