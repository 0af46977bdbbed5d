#pragma once

#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/seeded.h"

// An entry of the catalogue: a model, what goes in, and what is made of what comes out.
namespace catalogue {

using Tensors = std::vector<torch::Tensor>;

struct Batch {
  Tensors inputs;
  torch::Tensor target;  ///< as all inputs, one row (dimension 0) a sample
};

struct Entry {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<Batch(int step)> batch;
  std::function<Tensors(torch::nn::Module&, const Tensors&)> forward;
  std::function<torch::Tensor(const Tensors& outputs, const Batch&)> loss;
  bool sgd = false;
  /// Samples of a batch see each other (batch norm in training, a loss over batch statistics).
  /// Ranks of data parallelism see their own rows only; so does the reference then: it computes the
  /// parts one after the other, adds up gradients, and keeps the buffers of the first part, which
  /// are those that DistributedDataParallel hands to all.
  bool batch_coupled = false;
  /// The loss is no mean over rows, as it counts words: of micro-batches, which count by their
  /// rows, it is another one than of the batch, and so the reference takes them one after the
  /// other.
  bool counts_words = false;
  /// Whether one device can run it under bf16 autocast.
  bool runs_in_bf16 = true;
  /// Whether a rounding may turn a decision (which point is the largest, which query is matched):
  /// what that changes is no rounding any more. One of a batch's four samples may change wholly.
  bool decides = false;
};

/// An entry from the model's own types: `Model` is what TORCH_MODULE makes.
template <typename Model>
Entry entry(std::string name, std::function<Model()> make, std::function<Batch(int)> batch,
            std::function<Tensors(typename Model::ContainedType&, const Tensors&)> forward,
            std::function<torch::Tensor(const Tensors&, const Batch&)> loss) {
  Entry made;
  made.name = std::move(name);
  made.make = [make] { return std::shared_ptr<torch::nn::Module>(make().ptr()); };
  made.batch = std::move(batch);
  made.forward = [forward](torch::nn::Module& model, const Tensors& inputs) {
    return forward(dynamic_cast<typename Model::ContainedType&>(model), inputs);
  };
  made.loss = std::move(loss);
  return made;
}

/// Gives DistributedDataParallel one class for all entries.
struct ForwardOf : torch::nn::Module {
  ForwardOf(const Entry& of, const std::shared_ptr<torch::nn::Module>& of_model)
      : entry(of), model(register_module("model", of_model)) {}
  Tensors forward(const Tensors& inputs) { return entry.forward(*model, inputs); }
  const Entry& entry;
  std::shared_ptr<torch::nn::Module> model;
};

inline torch::Tensor floating_to(const torch::Tensor& tensor, torch::Dtype dtype) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(dtype) : tensor;
}

/// Module::to would turn integers and masks into numbers as well.
inline std::shared_ptr<torch::nn::Module> make_model(const Entry& entry, torch::Dtype dtype) {
  auto model = oslo::test::make_seeded(7, entry.make);
  for (auto tensors : {model->parameters(), model->buffers()}) {
    for (torch::Tensor& tensor : tensors) tensor.set_data(floating_to(tensor.detach(), dtype));
  }
  return model;
}

inline Batch make_batch(const Entry& entry, int step, torch::Dtype dtype) {
  Batch batch = oslo::test::make_seeded(100 + step, [&] { return entry.batch(step); });
  for (torch::Tensor& input : batch.inputs) input = floating_to(input, dtype);
  batch.target = floating_to(batch.target, dtype);
  return batch;
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Entry& entry,
                                                               const Tensors& parameters) {
  if (entry.sgd) {
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(1e-2).momentum(0.9));
  }
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
}

// What many entries are made of.

/// Model(input) is the only output.
template <typename Model>
Tensors one_to_one(typename Model::ContainedType& model, const Tensors& inputs) {
  return {model.forward(inputs[0])};
}

template <typename Model>
Tensors two_to_one(typename Model::ContainedType& model, const Tensors& inputs) {
  return {model.forward(inputs[0], inputs[1])};
}

/// A class a sample.
inline torch::Tensor classification(const Tensors& outputs, const Batch& batch) {
  return torch::nn::functional::cross_entropy(outputs[0], batch.target);
}

/// A token of the vocabulary a position.
inline torch::Tensor next_token(const Tensors& outputs, const Batch& batch) {
  return torch::nn::functional::cross_entropy(outputs[0].flatten(0, 1), batch.target.flatten());
}

}  // namespace catalogue
