#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <utility>
#include <vector>

#include "oslo_cpp/exported/module/python_module.h"
#include "oslo_cpp/initialize/initialize.h"
#include "parallelizers/modules/output_values.h"

namespace oslo {

/// A TorchScript module as a `torch::nn::Module`: it has the same submodules, parameters and
/// buffers under the same names, the tensors themselves. So optimizers, `initialize`, checkpoints,
/// `verify` and `DistributedDataParallel` take it like any module. `Linear` and `Embedding` of
/// torch.nn are LibTorch's layers in it, which plans cut. PyTorch calls TorchScript deprecated: a
/// model whose Python is at hand comes by `load_exported` (docs/bring-your-model.md).
///
///   auto model = std::make_shared<oslo::ScriptModule>(torch::jit::load("model.pt"));
///   auto parallel = oslo::initialize(model, config);
///   model->forward(tokens).toTensor();
///
/// It shares everything with the script module, which stays usable. A tied weight is one parameter
/// here, which `parameters()` lists once.
class ScriptModule : public PythonModule {
 public:
  /// Throws `Error`, naming what is wrong, for a module that does not train: one without
  /// parameters (`torch.jit.freeze` and `optimize_for_inference` make constants of them), one
  /// without a `forward`, and one whose code replaces a parameter or buffer (`self.count =
  /// self.count + 1`), which nobody but the script would see; write `self.count.add_(1)`.
  explicit ScriptModule(const torch::jit::Module& script);

  /// Runs the script's forward, without TorchScript's optimizations (the profiling executor): they
  /// replace autograd's derivatives by others, which take sizes of this rank's part for those of
  /// the whole. Call it from any thread; other scripts are as before.
  c10::IValue forward(std::vector<c10::IValue> inputs);

  template <typename... Rest>
  c10::IValue forward(const at::Tensor& first, const Rest&... rest) {
    return forward(std::vector<c10::IValue>{first, rest...});
  }

  /// The script's, too, all its submodules included.
  void train(bool on = true) override;

  torch::jit::Module& script() { return script_; }

  /// Pipeline stages are refused by `initialize`.
  std::string no_stages() const override;

 private:
  torch::jit::Module script_;
};

/// The same as `initialize` of a `ScriptModule`, which is `module()` of what it gives. Collective:
/// a script that cannot be trained is refused on every rank. `script.forward` may be called
/// directly while TorchScript's optimizations are off in the calling thread
/// (`torch::jit::setGraphExecutorOptimize(false)`); throws `Error` where they are on.
ParallelModel initialize(const torch::jit::Module& script, const Config& config = {},
                         const InitializeOptions& options = {});

}  // namespace oslo
