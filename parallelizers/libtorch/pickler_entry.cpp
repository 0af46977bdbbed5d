#include "parallelizers/libtorch/pickler_entry.h"

#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace oslo {
namespace {

using Metadata = std::unordered_map<std::string, bool>;
using Functions = std::optional<std::pair<torch::jit::BackendMetaPtr, torch::jit::BackendMetaPtr>>;

Functions& functions_of(c10::DeviceType device) {
  return torch::jit::GetBackendMetaSerialization()[static_cast<size_t>(device)];
}

}  // namespace

PicklerEntry::PicklerEntry(void (*meets)(const at::Tensor& tensor)) {
  for (size_t i = 0; i < kDevices.size(); ++i) {
    Functions& functions = functions_of(kDevices[i]);
    ours_[i] = !functions;
    if (!ours_[i]) continue;
    functions.emplace([meets](const at::Tensor& tensor, Metadata&) { meets(tensor); },
                      [](const at::Tensor&, Metadata&) {});
  }
}

PicklerEntry::~PicklerEntry() {
  for (size_t i = 0; i < kDevices.size(); ++i) {
    if (ours_[i]) functions_of(kDevices[i]).reset();
  }
}

}  // namespace oslo
