#include "parallelizers/memory/saved_tensors.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/libtorch/autograd_engine.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/graph/front_nodes.h"
#include "parallelizers/placement/residency/stage_carrier.h"

namespace oslo {
namespace {

using torch::autograd::SavedVariableHooks;

thread_local const SavedTensorScope* innermost = nullptr;
thread_local PackSavedTensor without_scope;
thread_local std::function<void()> to_call;

/// Memory that can be filled again.
struct Regained {
  c10::weak_intrusive_ptr<c10::StorageImpl> memory;
  PackSavedTensor pack;
};
thread_local std::vector<std::weak_ptr<const Regained>> regained;

UnpackSavedTensor regain(const at::Tensor& saved) {
  if (regained.empty() || !saved.has_storage()) return {};
  for (const auto& entry : regained) {
    const auto one = entry.lock();
    if (!one || one->memory.lock().get() != saved.storage().unsafeGetStorageImpl()) continue;
    return one->pack(saved);
  }
  return {};
}

bool some_regained() {
  std::erase_if(regained, [](const auto& entry) { return entry.expired(); });
  return !regained.empty();
}

/// What `detach` gives: the same memory and version counter. Of a plain tensor not by the
/// dispatcher, which would take as long as all else that is done with a saved one.
at::Tensor without_history(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (typeid(*impl) != typeid(c10::TensorImpl) || tensor.key_set().has(kPlacedKey) ||
      tensor.is_inference()) {
    return tensor.detach();
  }
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/false));
}

/// One saved tensor.
class PackedTensor final : public SavedVariableHooks {
 public:
  explicit PackedTensor(const PackSavedTensor& pack) : pack_(pack) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    // An operator's own result would otherwise keep the operator's node alive, which keeps this.
    const at::Tensor saved = without_history(tensor);
    like_ = saved.options();
    sizes_ = saved.sizes().vec();
    if (!saved.is_inference()) {
      writes_ = saved.unsafeGetTensorImpl()->version_counter();
      writes_when_saved_ = writes_->current_version();
    }
    unpack_ = regain(saved);
    if (!unpack_ && pack_) unpack_ = pack_(saved);
    if (!unpack_) kept_ = saved;
  }

  at::Tensor call_unpack_hook() override {
    check_not_written();
    if (!unpack_) return kept_;
    at::Tensor tensor = unpack_();
    OSLO_CHECK(tensor.defined(), "a saved tensor of shape ", c10::IntArrayRef(sizes_),
               " was unpacked as an undefined one");
    OSLO_CHECK(tensor.sizes() == c10::IntArrayRef(sizes_) && tensor.dtype() == like_.dtype() &&
                   tensor.device() == like_.device(),
               "a saved ", like_.dtype(), " tensor of shape ", c10::IntArrayRef(sizes_), " on ",
               like_.device(), " was unpacked as ", tensor.dtype(), " of shape ", tensor.sizes(),
               " on ", tensor.device());
    return tensor;
  }

 private:
  void check_not_written() const {
    const bool written = writes_ && writes_->current_version() != writes_when_saved_;
    OSLO_CHECK(!written, "one of the variables needed for gradient computation has been modified ",
               "by an inplace operation: a tensor of shape ", c10::IntArrayRef(sizes_),
               " is at version ", writes_->current_version(), ", it was saved at version ",
               writes_when_saved_, "; write to a copy of it (clone())");
  }

  const PackSavedTensor pack_;
  UnpackSavedTensor unpack_;
  at::Tensor kept_;
  at::TensorOptions like_;
  std::vector<int64_t> sizes_;
  std::optional<c10::VariableVersion> writes_;  ///< shared with the tensor that was saved
  uint32_t writes_when_saved_ = 0;
};

/// `torch::autograd::grad` comes by too: inside a pipeline's forward, which all ranks run, they
/// would not find the same.
void before_pass(const torch::autograd::edge_list& roots) {
  without_scope = nullptr;
  if (const auto call = std::exchange(to_call, nullptr)) call();
  if (StageCarrier::current() != nullptr) refuse_roots_of_stages(roots);
}

std::unique_ptr<SavedVariableHooks> pack_by_scope() {
  if (innermost != nullptr) return std::make_unique<PackedTensor>(innermost->pack());
  if (without_scope || some_regained()) return std::make_unique<PackedTensor>(without_scope);
  return nullptr;
}

/// A scope says so where there is an engine already.
const bool installed = [] {
  install_engine({&before_pass, &behind_fronts, &before_fronts, &pack_by_scope});
  return true;
}();

void check_seen() {
  OSLO_CHECK(installed && engine_is_installed(),
             "SavedTensorScope: another autograd engine than oslo_cpp's is installed in this "
             "process (a Python interpreter installs its own), so saved tensors cannot be seen; "
             "run the program without Python in its process");
}

}  // namespace

SavedTensorScope::SavedTensorScope(PackSavedTensor pack)
    : pack_(std::move(pack)), outer_(innermost) {
  OSLO_CHECK(pack_, "SavedTensorScope: the function is empty");
  check_seen();
  innermost = this;
}

const SavedTensorScope* SavedTensorScope::current() {
  return innermost;
}

SavedTensorScope::~SavedTensorScope() {
  innermost = outer_;
}

void pack_until_backward(PackSavedTensor pack) {
  if (pack) check_seen();
  without_scope = std::move(pack);
}

std::shared_ptr<void> regain_memory(const at::Tensor& memory, PackSavedTensor pack) {
  check_seen();
  auto entry = std::make_shared<const Regained>(
      Regained{memory.storage().getWeakStorageImpl(), std::move(pack)});
  regained.emplace_back(entry);
  return std::const_pointer_cast<Regained>(entry);
}

void before_next_backward(std::function<void()> call) {
  to_call = std::move(call);
}

}  // namespace oslo
