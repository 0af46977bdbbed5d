#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "mpu/group/messages.h"

namespace oslo {

/// One message that is to come, and what came.
struct PendingMessage::Expected {
  int from = 0;
  int tag = 0;
  const char* rule = "";
  std::vector<at::Tensor> like;
  std::shared_ptr<Messages::Queue> queue;
  std::optional<MessageHeader> header;  ///< once it has come
  int64_t moved = 0;
  at::Tensor frame;  ///< what came together with the header
  bool in_rounds = false;
  bool done = false;
  bool taken = false;
  std::vector<at::Tensor> tensors;
  std::exception_ptr error;
};

}  // namespace oslo
