#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oslo_cpp/exported/module/python_module.h"
#include "parallelizers/modules/output_values.h"

namespace oslo {

/// A Python model that `torch.export` wrote: Python's module tree with its names, parameters and
/// buffers, and the graph of its forward. LibTorch's optimizers, `initialize`, checkpoints and
/// `DistributedDataParallel` take it like any module. See docs/bring-your-model.md.
///
/// Layers are LibTorch's (`Linear`, `Embedding`, `Conv1d` to `3d`, `LayerNorm`, `GroupNorm`,
/// `BatchNorm1d` to `3d`) where Python had these. A tied weight is one tensor, which `parameters()`
/// lists once, as in Python. Buffers that Python does not save (`persistent=False`) are buffers
/// that checkpoints leave out.
///
/// `forward` runs on whichever thread calls it; as with any module, two at a time may meet in
/// buffers that it writes to.
class ExportedModule : public PythonModule {
 public:
  ~ExportedModule() override;

  /// Runs the program on the tensors of Python's arguments, in their order, tuples and dictionaries
  /// flattened (`input_names`); arguments that were numbers or None when the program was exported
  /// are as they were then, and are not passed. Gives a tensor where Python's forward did, else a
  /// tuple of all results, flattened in the same way (`output_names`).
  ///
  /// Throws `Error` for another number of inputs, and for types and sizes that the program was not
  /// exported for. A floating-point input may be of any precision. Throws `Error`, too, in
  /// evaluation, where the program draws random numbers that it does not say the end of
  /// (stochastic depth as a bare `bernoulli_`): such a one needs a file for evaluation.
  c10::IValue forward(const std::vector<c10::IValue>& inputs);

  template <typename... Rest>
  c10::IValue forward(const at::Tensor& first, const Rest&... rest) {
    return forward(std::vector<c10::IValue>{first, rest...});
  }

  /// Inputs of zeros, of the types and sizes that the program was exported with: an example for
  /// `initialize`.
  std::vector<c10::IValue> example_inputs() const;
  const std::vector<std::string>& input_names() const;
  /// Of the forward in the mode that the model is in, where evaluation has a file of its own.
  const std::vector<std::string>& output_names() const;

  /// Training or evaluation, of one file: dropout, batch norms and attention's dropout ask the
  /// module that they were in. A flag that was off in a program exported in training stays off (a
  /// norm that Python had frozen). With a file for evaluation, that is what runs when no module
  /// that the program of training asks is in training. Throws `Error` where the program was
  /// exported in evaluation and so says nothing of training.
  void train(bool on = true) override;

  /// A model of its own with the same values, modes and types, on `device` or where this one is. It
  /// reads the file again, which has to be what it was: throws `Error` where that is gone or of
  /// another model, and for one that `initialize` has made parallel.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  struct State;
  explicit ExportedModule(std::unique_ptr<State> state);
  /// An empty path of evaluation: none.
  static std::shared_ptr<ExportedModule> read(const std::filesystem::path& path,
                                              const std::filesystem::path& evaluation);
  friend std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& path);
  friend std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& training,
                                                       const std::filesystem::path& evaluation);

  std::unique_ptr<State> state_;
};

/// Reads a file of Python's `torch.export.save(torch.export.export(model, ...), path)`, in the
/// training form that export gives (before `run_decompositions`), of PyTorch 2.11. Everything that
/// can be wrong with it is refused here, `Error` naming the file and the node: a cut or damaged
/// file, a newer schema, operators that this program does not have, arguments that do not go with
/// their operator's schema, kinds of nodes and arguments that are not supported. Nothing in the
/// file is unpickled.
///
/// Tensors are on the CPU. Random generators are as before. Memory: the tensors, and while it reads
/// some 10 times the graph's text. Time is linear in the file.
std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& path);

/// A model of two files: as it is in training, and the same exported behind `model.eval()`, for
/// programs that do more in training than flags of operators say (draws of their own, branches on
/// `self.training`). Tensors are those of the first file, and one: modules, parameters and buffers
/// must be the same in both by name, size and type, and the inputs by name. `forward` runs the
/// second as it is written when the model is in evaluation.
std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& training,
                                              const std::filesystem::path& evaluation);

}  // namespace oslo
