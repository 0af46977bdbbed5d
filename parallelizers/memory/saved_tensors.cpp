#include "parallelizers/memory/saved_tensors.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <optional>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/graph/front_nodes.h"
#include "parallelizers/placement/residency/stage_carrier.h"

namespace oslo {
namespace {

using torch::autograd::Engine;
using torch::autograd::ReadyQueue;
using torch::autograd::SavedVariableHooks;

thread_local const SavedTensorScope* innermost = nullptr;

/// One saved tensor.
class PackedTensor final : public SavedVariableHooks {
 public:
  explicit PackedTensor(const PackSavedTensor& pack) : pack_(pack) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    // An operator's own result would otherwise keep the operator's node alive, which keeps this.
    const at::Tensor saved = tensor.detach();
    like_ = saved.options();
    sizes_ = saved.sizes().vec();
    if (!saved.is_inference()) {
      writes_ = saved.unsafeGetTensorImpl()->version_counter();
      writes_when_saved_ = writes_->current_version();
    }
    unpack_ = pack_(saved);
    if (!unpack_) kept_ = saved;
  }

  at::Tensor call_unpack_hook() override {
    check_not_written();
    if (!unpack_) return kept_;
    at::Tensor tensor = unpack_();
    OSLO_CHECK(tensor.defined(), "a saved tensor of shape ", c10::IntArrayRef(sizes_),
               " was unpacked as an undefined one");
    OSLO_CHECK(tensor.sizes() == c10::IntArrayRef(sizes_) && tensor.dtype() == like_.dtype() &&
                   tensor.device() == like_.device(),
               "a saved ", like_.dtype(), " tensor of shape ", c10::IntArrayRef(sizes_), " on ",
               like_.device(), " was unpacked as ", tensor.dtype(), " of shape ", tensor.sizes(),
               " on ", tensor.device());
    return tensor;
  }

 private:
  void check_not_written() const {
    const bool written = writes_ && writes_->current_version() != writes_when_saved_;
    OSLO_CHECK(!written, "one of the variables needed for gradient computation has been modified ",
               "by an inplace operation: a tensor of shape ", c10::IntArrayRef(sizes_),
               " is at version ", writes_->current_version(), ", it was saved at version ",
               writes_when_saved_, "; write to a copy of it (clone())");
  }

  const PackSavedTensor pack_;
  UnpackSavedTensor unpack_;
  at::Tensor kept_;
  at::TensorOptions like_;
  std::vector<int64_t> sizes_;
  std::optional<c10::VariableVersion> writes_;  ///< shared with the tensor that was saved
  uint32_t writes_when_saved_ = 0;
};

/// LibTorch asks the default engine what to do with each tensor that an operator saves. This is the
/// only way in from C++: LibTorch's own list of default hooks holds Python objects. It is also
/// where `torch::autograd::grad` comes by: inside a pipeline's forward, which all ranks run, they
/// would not find the same. And it is where a backward pass that throws comes by.
class HookingEngine final : public Engine {
 public:
  ~HookingEngine() override { stop(); }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    if (StageCarrier::current() != nullptr) refuse_roots_of_stages(roots);
    try {
      return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    } catch (...) {
      forget_tasks();
      throw;
    }
  }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (innermost == nullptr) return nullptr;
    return std::make_unique<PackedTensor>(innermost->pack());
  }

 private:
  /// A pass that throws leaves the nodes that it had not come to in the queue of its thread, for as
  /// long as that starts no other pass. They would hold model and groups, and a rank that failed
  /// alone would not be missed by the others.
  void forget_tasks() {
    const bool inside_another_pass = torch::autograd::get_current_graph_task_id() != -1;
    if (!inside_another_pass) init_local_ready_queue(std::make_shared<ReadyQueue>());
  }
};

Engine& hooking_engine() {
  static HookingEngine engine;
  return engine;
}

/// When the library is loaded, before the first backward pass can have started LibTorch's threads.
const bool installed = [] {
  // An engine that is there already is Python's; a scope then says so.
  if (&Engine::get_default_engine() == &Engine::get_base_engine()) {
    torch::autograd::set_default_engine_stub(&hooking_engine);
  }
  return true;
}();

}  // namespace

SavedTensorScope::SavedTensorScope(PackSavedTensor pack)
    : pack_(std::move(pack)), outer_(innermost) {
  OSLO_CHECK(pack_, "SavedTensorScope: the function is empty");
  OSLO_CHECK(installed && &Engine::get_default_engine() == &hooking_engine(),
             "SavedTensorScope: another autograd engine than oslo_cpp's is installed in this "
             "process (a Python interpreter installs its own), so saved tensors cannot be seen; "
             "run the program without Python in its process");
  innermost = this;
}

const SavedTensorScope* SavedTensorScope::current() {
  return innermost;
}

SavedTensorScope::~SavedTensorScope() {
  innermost = outer_;
}

}  // namespace oslo
