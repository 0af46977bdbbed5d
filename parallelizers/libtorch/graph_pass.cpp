#include "parallelizers/libtorch/graph_pass.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "mpu/base/node_ptr.h"

namespace oslo {
namespace {

using torch::autograd::variable_list;

/// All that a pass consists of.
class OnlyNode final : public torch::autograd::Node {
 public:
  explicit OnlyNode(std::function<void()> part) : part_(std::move(part)) {}
  std::string name() const override { return "OsloOnlyNode"; }
  variable_list apply(variable_list&& /*gradients*/) override {
    part_();
    return {};
  }

 private:
  const std::function<void()> part_;
};

}  // namespace

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

void run_as_pass(std::function<void()> part) {
  const auto node = make_node<OnlyNode>(std::move(part));
  const at::Tensor start = at::empty({0});
  node->add_input_metadata(start);
  torch::autograd::Engine::get_default_engine().execute({torch::autograd::Edge(node, 0)}, {start},
                                                        /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

}  // namespace oslo
