#include "parallelizers/pipeline/run/split_batch.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "mpu/base/error.h"

namespace oslo {

std::vector<at::Tensor> MicroBatches::copy_of(size_t micro_batch) const {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors[micro_batch]) copies.push_back(tensor.detach().clone());
  return copies;
}

MicroBatches split_batch(const std::vector<at::Tensor>& batch, int number) {
  OSLO_CHECK(!batch.empty(), "the batch has no tensors; pass those that the forward needs");
  for (size_t i = 0; i < batch.size(); ++i) {
    OSLO_CHECK(batch[i].defined(), "tensor ", i, " of the batch is undefined");
    if (number == 1) continue;
    OSLO_CHECK(batch[i].dim() > 0, "tensor ", i,
               " of the batch has no dimension 0, along which a batch is divided into "
               "micro-batches; capture what is the same for all of them in the loss function");
    OSLO_CHECK(batch[i].size(0) == batch[0].size(0), "tensor ", i, " of the batch has ",
               batch[i].size(0), " rows, tensor 0 has ", batch[0].size(0),
               "; a batch is divided into micro-batches along dimension 0 of all its tensors");
  }
  MicroBatches parts;
  if (number == 1) {
    parts.weights = {1.0};
    parts.tensors.resize(1);
    for (const at::Tensor& tensor : batch) parts.tensors[0].push_back(tensor.clone());
    return parts;
  }
  const int64_t rows = batch[0].size(0);
  OSLO_CHECK(rows > 0, "the batch has no rows, of which no loss is a mean");
  number = static_cast<int>(std::min<int64_t>(number, rows));
  parts.tensors.resize(number);
  for (const at::Tensor& tensor : batch) {
    const std::vector<at::Tensor> split = tensor.tensor_split(number, 0);
    for (int i = 0; i < number; ++i) parts.tensors[i].push_back(split[i].clone());
  }
  for (const auto& tensors : parts.tensors) {
    parts.weights.push_back(static_cast<double>(tensors[0].size(0)) / static_cast<double>(rows));
  }
  return parts;
}

}  // namespace oslo
