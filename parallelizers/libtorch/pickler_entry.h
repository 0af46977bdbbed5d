#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace oslo {

/// Every way of pickling a tensor (torch::save, pickle_save, archives, Python's torch.save) asks
/// one table of functions a process, by device, for what else belongs to the tensor. While the
/// object lives `meets` is asked, which may throw and adds nothing; where another library's
/// functions stand already they stay.
class PicklerEntry {
 public:
  explicit PicklerEntry(void (*meets)(const at::Tensor& tensor));
  ~PicklerEntry();
  PicklerEntry(const PicklerEntry&) = delete;
  PicklerEntry& operator=(const PicklerEntry&) = delete;

 private:
  static constexpr std::array<c10::DeviceType, 2> kDevices = {c10::kCPU, c10::kCUDA};

  std::array<bool, kDevices.size()> ours_{};
};

}  // namespace oslo
