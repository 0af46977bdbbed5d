#include "parallelizers/plan/dry/write_watch.h"

#include <ATen/ATen.h>
#include <ATen/core/function_schema.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

/// LibTorch's callbacks are plain functions: this is how they find their watch.
thread_local WriteWatch* watching = nullptr;

/// The same geometry, memory and mark, as a tensor of its own.
at::Tensor twin_of(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

/// Whether it is a parameter or buffer without content.
bool is_shape(const at::Tensor& tensor) {
  const Mark* mark = placed_impl(tensor) != nullptr ? nullptr : mark_of(tensor);
  return mark != nullptr && !mark->layout->here();
}

int64_t version_of(const at::Tensor& tensor) {
  return is_shape(tensor) && !tensor.is_inference() ? tensor._version() : 0;
}

/// What a tensor has in common with its views and its `data()`: the memory; of a shape, which has
/// none, its mark.
const void* identity_of(const at::Tensor& tensor) {
  const PlacedTensorImpl* impl = placed_impl(tensor);
  const at::Tensor& local = impl != nullptr ? impl->unfinished().local : tensor;
  if (is_shape(tensor)) return mark_of(tensor);
  return local.has_storage() ? local.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

WriteWatch::WriteWatch(const ModelView& model) : outer_(watching) {
  std::set<const c10::TensorImpl*> known;
  const auto watch = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || placed_impl(tensor)) return;
    if (!known.insert(tensor.unsafeGetTensorImpl()).second) return;
    by_identity_.emplace(identity_of(tensor), watched_.size());
    watched_.push_back({name, tensor, twin_of(tensor), {}, false, version_of(tensor)});
  };
  for (const ParameterView& parameter : model.parameters()) {
    watch(parameter.path, parameter.registered);
  }
  for (const ParameterView& parameter : model.parameters()) {
    watch(parameter.path, parameter.in_use());
  }
  for (const BufferView& buffer : model.buffers()) watch(buffer.path, buffer.tensor);
  watching = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_start).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

WriteWatch::~WriteWatch() {
  at::removeCallback(handle_);
  watching = outer_;
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  for (Watched& each : watched_) {
    if (each.content.defined()) each.memory.copy_(each.content);
    if (moved(each)) {
      each.tensor.unsafeGetTensorImpl()->shallow_copy_from(each.memory.getIntrusivePtr());
    }
  }
}

bool WriteWatch::moved(const Watched& each) const {
  const at::Tensor& now = each.tensor;
  return identity_of(now) != identity_of(each.memory) || now.sizes() != each.memory.sizes() ||
         now.strides() != each.memory.strides() || now.dtype() != each.memory.dtype() ||
         now.storage_offset() != each.memory.storage_offset();
}

std::set<std::string> WriteWatch::written() const {
  std::set<std::string> names;
  for (const Watched& each : watched_) {
    if (each.written || moved(each) || version_of(each.tensor) != each.version)
      names.insert(each.name);
  }
  return names;
}

std::unique_ptr<at::ObserverContext> WriteWatch::on_start(const at::RecordFunction& function) {
  if (watching != nullptr) watching->look_at(function);
  return nullptr;
}

void WriteWatch::look_at(const at::RecordFunction& function) {
  bool met = false;
  const auto look = [&](const at::Tensor& tensor) {
    met |= by_identity_.count(identity_of(tensor));
  };
  for (const c10::IValue& input : function.inputs()) for_each_tensor_in(input, look);
  if (!met) return;
  const auto schema = function.operator_schema();
  if (!schema) return;
  const size_t count = std::min(schema->arguments().size(), function.inputs().size());
  for (size_t i = 0; i < count; ++i) {
    const auto* alias = schema->arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for_each_tensor_in(function.inputs()[i], [&](const at::Tensor& t) { before_write(t); });
  }
}

void WriteWatch::before_write(const at::Tensor& target) {
  const at::DisableRecordFunctionGuard own_operators;
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const auto [first, last] = by_identity_.equal_range(identity_of(target));
  for (auto found = first; found != last; ++found) {
    Watched& each = watched_[found->second];
    if (!each.written && !is_shape(each.memory)) each.content = each.memory.clone();
    each.written = true;
  }
}

void FirstWrites::ran(const std::set<std::string>& written, bool to_its_end) {
  std::set<std::string> still_open;
  for (const std::string& name : open_) {
    if (written.count(name) > 0) {
      again_.insert(name);
    } else if (to_its_end) {
      once_.insert(name);
    } else {
      still_open.insert(name);
    }
  }
  for (const std::string& name : written) {
    if (again_.count(name) == 0) still_open.insert(name);
  }
  open_ = std::move(still_open);
}

void run_watched(const ModelView& model, const std::function<void()>& example,
                 FirstWrites& writes) {
  const WriteWatch watch(model);
  try {
    example();
  } catch (...) {
    writes.ran(watch.written(), /*to_its_end=*/false);
    throw;
  }
  writes.ran(watch.written(), /*to_its_end=*/true);
}

void FirstWrites::check() const {
  if (once_.empty()) return;
  std::string names;
  for (const std::string& name : once_) names += (names.empty() ? "" : ", ") + name;
  fail("initialize: the forward of example_inputs writes ", names,
       " in its first run only, and a plain member of the model remembers that it did: the first "
       "real forward would not write it again. Run one real forward before initialize, or leave "
       "example_inputs out");
}

}  // namespace oslo
