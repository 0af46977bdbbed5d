#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

namespace oslo {

// What an operator that read elements gave, as a message to the ranks that have only the shape of
// what it read: numbers and truth values as they are, bit for bit; of tensors, and lists of them,
// shape and type, and whether they have a gradient.

std::vector<at::Tensor> message_of_read(const std::vector<c10::IValue>& results);

/// With meta tensors for tensors.
std::vector<c10::IValue> read_of_message(const std::vector<at::Tensor>& message);

}  // namespace oslo
