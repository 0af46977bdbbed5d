#include "parallelizers/plan/dry/memory_tape.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/local_of.h"
#include "parallelizers/placement/elsewhere/stage_call.h"

namespace oslo {
namespace {

thread_local MemoryTape* current_tape = nullptr;

/// On shapes it runs by something that saves other tensors than attention does.
bool is_attention(const OperatorEntry& op) {
  return std::string_view(op.name).starts_with("aten::scaled_dot_product_attention");
}

/// Of operators without a kernel for shapes, where nothing can be seen; of others all.
MemoryTape::Saves what_it_saves(std::string_view name) {
  name = name.substr(name.find("::") + 2);
  name = name.substr(0, name.find('.'));
  if (name == "embedding") return {false, false};
  for (const std::string_view by_result : {"relu", "sigmoid", "tanh", "exp", "sqrt", "softmax"}) {
    if (name == by_result) return {false, true};
  }
  const bool by_arguments = name.starts_with("conv") || name.starts_with("_conv") ||
                            name == "linear" || name.ends_with("mm") ||
                            name.find("_norm") != std::string_view::npos;
  return {true, !by_arguments};
}

}  // namespace

/// An operator that has begun.
struct MemoryTape::Open : at::ObserverContext {
  Call call;
  bool attention = false;
};

MemoryTape::MemoryTape(std::unordered_map<const c10::TensorImpl*, int> layers)
    : layers_(std::move(layers)) {}

void MemoryTape::begin(std::shared_ptr<CallObserver> inner) {
  OSLO_CHECK(current_tape == nullptr, "a MemoryTape runs on this thread already");
  inner_ = std::move(inner);
  numbers_.clear();
  alive_.clear();
  memories_.clear();
  calls_.clear();
  saved_.clear();
  inputs_.clear();
  segment_ = kNone;
  depth_ = 0;
  current_tape = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&started, &ended)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
  saving_ = std::make_unique<SavedTensorScope>([this](const at::Tensor& saved) {
    const int number = meet(saved, /*made=*/true);
    if (number != kNone) saved_.push_back(number);
    return UnpackSavedTensor();
  });
}

void MemoryTape::end() {
  bury();
  saving_.reset();
  at::removeCallback(handle_);
  current_tape = nullptr;
}

void MemoryTape::called(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (tensor.key_set().has(kPlacedKey) || tensor.is_meta() || !tensor.has_storage()) return;
    const c10::Storage& memory = tensor.storage();
    inputs_.emplace(memory.unsafeGetStorageImpl(), memory.getWeakStorageImpl());
  });
  stages_ = stages_of(arguments);
  inner_->called(op, arguments);
}

int64_t MemoryTape::input_bytes() const {
  int64_t bytes = 0;
  for (const auto& [impl, memory] : inputs_) {
    if (!memory.expired()) bytes += static_cast<int64_t>(impl->nbytes());
  }
  return bytes;
}

void MemoryTape::about_to_use(const at::Tensor& parameter, c10::ArrayRef<c10::IValue>) {
  const auto found = layers_.find(parameter.unsafeGetTensorImpl());
  segment_ = found == layers_.end() ? kNone : found->second;
}

/// Of a shape; what has content is the program's own.
int MemoryTape::meet(const at::Tensor& tensor, bool made) {
  const at::Tensor local = tensor.defined() ? local_of(tensor) : tensor;
  if (!local.defined() || !local.is_meta() || !local.has_storage()) return kNone;
  const c10::Storage& storage = local.storage();
  const auto [found, added] = numbers_.emplace(storage.unsafeGetStorageImpl(), memories_.size());
  if (added) {
    Memory memory{.impl = c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl()),
                  .savers = {}};
    memory.bytes = static_cast<int64_t>(storage.nbytes());
    if (made) memory.made = static_cast<int>(calls_.size());
    memories_.push_back(std::move(memory));
    alive_.push_back(found->second);
  }
  memories_[found->second].used = static_cast<int>(calls_.size());
  return found->second;
}

/// Notes what has died since the last operator.
void MemoryTape::bury() {
  std::erase_if(alive_, [&](int number) {
    Memory& memory = memories_[number];
    if (!memory.impl.expired()) return false;
    memory.died = static_cast<int>(calls_.size());
    return true;
  });
}

void MemoryTape::read(Call& call, const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  call.segment = segment_;
  call.stages = stages_;
  // A forward's own are no shapes, or made by other operators.
  call.makes_shapes = op.name.starts_with("aten::empty");
  const bool records = c10::GradMode::is_enabled();
  for (const c10::IValue& argument : arguments) {
    for_each_tensor_in(argument, [&](const at::Tensor& tensor) {
      const int number = meet(tensor, /*made=*/false);
      if (number == kNone) return;
      call.arguments.push_back(number);
      if (!records || !local_of(tensor).requires_grad()) return;
      call.in_graph = true;
      if (!op.view) call.differentiated.push_back(number);
    });
  }
}

void MemoryTape::finish(Call call, c10::ArrayRef<c10::IValue> results,
                        std::optional<Saves> instead) {
  for (const c10::IValue& result : results) {
    for_each_tensor_in(result, [&](const at::Tensor& tensor) {
      const int number = meet(tensor, /*made=*/true);
      if (number == kNone) return;
      call.results.push_back(number);
      if (call.makes_shapes) memories_[number].bytes = 0;
    });
  }
  if (instead) {
    saved_.clear();
    const auto add = [&](const std::vector<int>& numbers) {
      saved_.insert(saved_.end(), numbers.begin(), numbers.end());
    };
    if (instead->arguments && call.in_graph) add(call.arguments);
    if (instead->results && call.in_graph) add(call.results);
  }
  for (const int number : saved_)
    memories_[number].savers.push_back(static_cast<int>(calls_.size()));
  saved_.clear();
  calls_.push_back(std::move(call));
  bury();
}

void MemoryTape::note(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
                      c10::ArrayRef<c10::IValue> results) {
  if (depth_ > 0) return;
  Call call;
  read(call, op, arguments);
  finish(std::move(call), results, what_it_saves(op.name));
}

std::unique_ptr<at::ObserverContext> MemoryTape::started(const at::RecordFunction& function) {
  MemoryTape* const tape = current_tape;
  if (tape == nullptr) return nullptr;
  if (tape->depth_ > 0) {
    ++tape->depth_;
    return nullptr;
  }
  const OperatorEntry* const op = tape->entries_.of(function);
  if (op == nullptr) return nullptr;
  const auto inputs = function.inputs();
  const c10::ArrayRef<c10::IValue> arguments(inputs.data(), inputs.size());
  bool placed = false;
  for_each_tensor(arguments,
                  [&](const at::Tensor& tensor) { placed |= tensor.key_set().has(kPlacedKey); });
  const bool attention = is_attention(*op);
  // Others run for it, and are noted.
  if ((placed || op->composite) && !attention) return nullptr;
  auto open = std::make_unique<Open>();
  open->attention = attention;
  tape->read(open->call, *op, arguments);
  ++tape->depth_;
  return open;
}

void MemoryTape::ended(const at::RecordFunction& function, at::ObserverContext* context) {
  MemoryTape* const tape = current_tape;
  if (tape == nullptr) return;
  if (context == nullptr) {
    if (tape->depth_ > 0) --tape->depth_;
    return;
  }
  tape->depth_ = 0;
  auto& open = *static_cast<Open*>(context);
  tape->finish(std::move(open.call), function.outputs(),
               open.attention ? std::optional(Saves{true, true}) : std::nullopt);
}

}  // namespace oslo
