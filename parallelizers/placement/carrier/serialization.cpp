// What writes tensors to a file knows one process only: of a parallel parameter it would write this
// rank's part, which passes for the whole when it is read. Every way of pickling (torch::save,
// pickle_save, archives, Python's torch.save) asks one table of functions, by device, for what else
// belongs to a tensor. Ours stands in it and refuses; it adds nothing to other tensors.
#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/key.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

using Metadata = std::unordered_map<std::string, bool>;

void refuse_part(const at::Tensor& tensor, Metadata&) {
  if (!tensor.key_set().has(kPlacedKey)) return;
  const Mark* mark = mark_of(tensor);
  if (mark == nullptr) return;  // a placed tensor has no storage, which was asked for before
  fail("torch::save would write only this rank's part, ", tensor.sizes(), " of ",
       c10::IntArrayRef(mark->layout->global_sizes(tensor.sizes())), ", of parallel parameter ",
       mark->name,
       ", or of a gradient or state of it, as if it were the whole; use "
       "parallel.save_parallelized(path), with SaveOptions().merge_checkpoints(true) for one file "
       "of the whole model, or save oslo::full_tensor(t)");
}

using Functions = std::optional<std::pair<torch::jit::BackendMetaPtr, torch::jit::BackendMetaPtr>>;

/// Puts `refuse_part` into the table, where nobody else is.
class SerializationHook {
 public:
  SerializationHook() {
    for (size_t i = 0; i < kDevices.size(); ++i) {
      Functions& functions = functions_of(kDevices[i]);
      ours_[i] = !functions;
      if (ours_[i]) functions.emplace(refuse_part, [](const at::Tensor&, Metadata&) {});
    }
  }
  ~SerializationHook() {
    for (size_t i = 0; i < kDevices.size(); ++i) {
      if (ours_[i]) functions_of(kDevices[i]).reset();
    }
  }
  SerializationHook(const SerializationHook&) = delete;
  SerializationHook& operator=(const SerializationHook&) = delete;

 private:
  static constexpr std::array<c10::DeviceType, 2> kDevices = {c10::kCPU, c10::kCUDA};

  static Functions& functions_of(c10::DeviceType device) {
    return torch::jit::GetBackendMetaSerialization()[static_cast<size_t>(device)];
  }

  std::array<bool, kDevices.size()> ours_{};
};

const SerializationHook serialization_hook;

}  // namespace
}  // namespace oslo
