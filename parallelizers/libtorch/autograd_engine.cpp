#include "parallelizers/libtorch/autograd_engine.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <memory>

namespace oslo {
namespace {

using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::ReadyQueue;
using torch::autograd::variable_list;

class HookingEngine final : public Engine {
 public:
  ~HookingEngine() override { stop(); }

  variable_list execute(const edge_list& roots, const variable_list& inputs, bool keep_graph,
                        bool create_graph, bool accumulate_grad,
                        const edge_list& outputs) override {
    hooks.before_pass(roots);
    try {
      if (outputs.empty()) {
        return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
      }
      return hooks.found(outputs, Engine::execute(roots, inputs, keep_graph, create_graph,
                                                  accumulate_grad, hooks.sought(outputs)));
    } catch (...) {
      forget_tasks();
      throw;
    }
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return hooks.saved_tensor();
  }

  EngineHooks hooks{};

 private:
  void forget_tasks() {
    const bool inside_another_pass = torch::autograd::get_current_graph_task_id() != -1;
    if (!inside_another_pass) init_local_ready_queue(std::make_shared<ReadyQueue>());
  }
};

HookingEngine& hooking_engine() {
  static HookingEngine engine;
  return engine;
}

Engine& default_engine() {
  return hooking_engine();
}

}  // namespace

void install_engine(const EngineHooks& hooks) {
  if (&Engine::get_default_engine() != &Engine::get_base_engine()) return;
  hooking_engine().hooks = hooks;
  torch::autograd::set_default_engine_stub(&default_engine);
}

bool engine_is_installed() {
  return &Engine::get_default_engine() == &default_engine();
}

}  // namespace oslo
