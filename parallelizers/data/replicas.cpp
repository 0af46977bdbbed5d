#include "parallelizers/data/replicas.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <map>

#include "mpu/world/agreement.h"
#include "parallelizers/libtorch/keys.h"

namespace oslo {
namespace {

constexpr int64_t kMessageBytes = 32 * 1024 * 1024;

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.contiguous().view({-1}).view(at::kByte);
}

void broadcast_together(Group& group, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(bytes_of(tensor));
  at::Tensor message = at::cat(bytes);
  group.broadcast(message);
  if (group.rank() == 0) return;
  int64_t start = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t length = bytes[i].numel();
    bytes[i].copy_(message.narrow(0, start, length));
    if (!bytes[i].is_alias_of(tensors[i])) {
      tensors[i].copy_(bytes[i].view(tensors[i].scalar_type()).view(tensors[i].sizes()));
    }
    start += length;
  }
}

}  // namespace

void check_replicas_agree(Group& group, const std::string& what,
                          const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  agree_on_text(group, text, [&](const Disagreement& seen) {
    return c10::str(what, " of rank ", seen.rank, " is not that of rank ", seen.first,
                    ", in group ", group.name(), ": there ", seen.line, ", on rank ", seen.first,
                    " ", seen.first_line, "; all ranks of the group must build ", what, " alike");
  });
}

void broadcast_from_first(Group& group, const std::vector<at::Tensor>& tensors) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  struct Message {
    std::vector<at::Tensor> tensors;
    int64_t bytes = 0;
  };
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Message> open;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const c10::Device device = tensor.device();
    Message& message = open[{device.type(), device.index()}];
    message.tensors.push_back(tensor);
    message.bytes += static_cast<int64_t>(tensor.nbytes());
    if (message.bytes < kMessageBytes) continue;
    broadcast_together(group, message.tensors);
    message = {};
  }
  for (const auto& [_, message] : open) {
    if (!message.tensors.empty()) broadcast_together(group, message.tensors);
  }
}

}  // namespace oslo
