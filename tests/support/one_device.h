#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>

#include "tests/support/catalogue_entry.h"

namespace catalogue {

/// The model on one device.
class OneDevice {
 public:
  OneDevice(const Entry& entry, int64_t parts)
      : entry_(entry),
        parts_(parts),
        model_(make_model(entry, torch::kFloat64)),
        optimizer_(make_optimizer(entry, model_->parameters())) {}

  torch::nn::Module& model() { return *model_; }

  Batch part_of(const Batch& batch, int64_t part) const {
    Batch own;
    for (const torch::Tensor& input : batch.inputs) {
      own.inputs.push_back(input.tensor_split(parts_, 0)[part]);
    }
    own.target = batch.target.tensor_split(parts_, 0)[part];
    return own;
  }

  /// The outputs that belong to `part`, after the gradients of the whole batch were computed.
  Tensors forward_backward(const Batch& batch, int64_t part) {
    optimizer_->zero_grad();
    if (!entry_.batch_coupled) {
      const Tensors outputs = entry_.forward(*model_, batch.inputs);
      entry_.loss(outputs, batch).backward();
      return rows_of(outputs, part);
    }
    const Tensors before = copies(model_->buffers());
    Tensors outputs;
    for (int64_t i = parts_ - 1; i >= 0; --i) {
      restore(before);
      const Batch own = part_of(batch, i);
      const Tensors computed = entry_.forward(*model_, own.inputs);
      (entry_.loss(computed, own) / double(parts_)).backward();
      if (i == part) outputs = computed;
    }
    return outputs;
  }

  Tensors forward(const Batch& batch, int64_t part) {
    if (entry_.batch_coupled) return entry_.forward(*model_, part_of(batch, part).inputs);
    return rows_of(entry_.forward(*model_, batch.inputs), part);
  }

  void step() { optimizer_->step(); }

 private:
  Tensors rows_of(const Tensors& outputs, int64_t part) const {
    Tensors rows;
    for (const torch::Tensor& output : outputs) {
      rows.push_back(output.tensor_split(parts_, 0)[part]);
    }
    return rows;
  }

  static Tensors copies(const Tensors& tensors) {
    Tensors copied;
    for (const torch::Tensor& tensor : tensors) copied.push_back(tensor.clone());
    return copied;
  }

  void restore(const Tensors& before) {
    const torch::NoGradGuard no_grad;
    Tensors buffers = model_->buffers();
    for (size_t i = 0; i < before.size(); ++i) buffers[i].copy_(before[i]);
  }

  const Entry& entry_;
  int64_t parts_;
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace catalogue
