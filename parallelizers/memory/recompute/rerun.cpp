#include "parallelizers/memory/recompute/rerun.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/detach.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <string>

#include "mpu/base/error.h"
#include "mpu/grid/random_states.h"
#include "parallelizers/memory/recompute/record/met_memory.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/local_of.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/door/tapped_call.h"

namespace oslo::recompute {
namespace {

constexpr const char* kSame =
    "; a function that is checkpointed must run the same operators whenever it is called with the "
    "same inputs";

/// Leaves running statistics alone: forward has updated them.
void copy_statistics(torch::jit::Stack& stack, size_t first) {
  for (const size_t i : {first + 3, first + 4}) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const c10::AutoGradMode no_gradients(false);
    stack[i] = at::clone(stack[i].toTensor());
  }
}

std::string shape_of(const MetTensor& met) {
  return c10::str(met.dtype, " ", c10::IntArrayRef(met.sizes));
}

}  // namespace

Rerun::Rerun(Segment& segment, std::vector<bool> needed, TakeSlot take)
    : segment_(segment),
      needed_(std::move(needed)),
      observed_(at::hasCallbacks() ? std::optional(at::isRecordFunctionEnabled()) : std::nullopt),
      take_(std::move(take)),
      wanted_(segment.storages.size()),
      memory_(segment.storages.size()) {
  segment_.for_each_slot([&](SavedSlot& slot, int number) {
    if (slot.kept || number == kNone || needed_[number]) return;
    if (slot.storage != kNone) wanted_[slot.storage] = true;
  });
}

void Rerun::fill(SavedSlot& slot, const at::Tensor& again) const {
  if (take_) {
    take_(slot, again);
  } else {
    slot.value = again;
  }
}

void Rerun::run(const OperatorEntry& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  if (run_by_definition(op, keys, stack)) return;
  const size_t number = number_;
  OSLO_CHECK(number < segment_.operators.size(), "checkpoint: running again, operator ", number + 1,
             " is ", op.name, "; there were ", segment_.operators.size(), " before", kSame);
  const OperatorRecord& record = segment_.operators[number];
  OSLO_CHECK(&op == record.op, "checkpoint: running again, operator ", number + 1, " is ", op.name,
             ", it was ", record.op->name, kSame);
  compare(record, c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - op.arguments));
  if (needed_[number]) {
    run_needed(record, stack);
  } else {
    skip(record, stack);
  }
  ++number_;
}

void Rerun::compare(const OperatorRecord& record, c10::ArrayRef<c10::IValue> arguments) const {
  size_t next = 0;
  const auto check = [&](const at::Tensor& tensor) {
    const MetTensor none;
    const MetTensor& met = next < record.arguments.size() ? record.arguments[next] : none;
    ++next;
    const bool same = tensor.defined() == met.defined &&
                      (!met.defined || (tensor.sizes() == c10::IntArrayRef(met.sizes) &&
                                        tensor.scalar_type() == met.dtype));
    OSLO_CHECK(same, "checkpoint: running again, tensor ", next, " of operator ", number_ + 1, ", ",
               record.op->name, ", is ",
               tensor.defined() ? c10::str(tensor.scalar_type(), " ", tensor.sizes()) : "undefined",
               ", it was ", met.defined ? shape_of(met) : "undefined", kSame);
  };
  for (const c10::IValue& argument : arguments) for_each_place(argument, check);
  OSLO_CHECK(next == record.arguments.size(), "checkpoint: running again, operator ", number_ + 1,
             ", ", record.op->name, ", has ", next, " tensors, it had ", record.arguments.size(),
             kSame);
}

void Rerun::run_needed(const OperatorRecord& record, torch::jit::Stack& stack) {
  const OperatorTap::Lifted lifted;
  const size_t first = stack.size() - record.op->arguments;
  if (record.makes_statistics) copy_statistics(stack, first);
  std::vector<at::Generator> generators;
  for (const auto& [generator, state] : record.random) generators.push_back(generator);
  const RandomStates afterwards(generators);
  for (auto [generator, state] : record.random) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
  running_ = number_;
  saved_ = 0;
  try {
    std::optional<at::RecordFunctionGuard> observed;
    if (observed_) observed.emplace(*observed_);
    std::optional<ReplayedCarrier> carrier;
    if (record.carried) carrier.emplace(*record.carried);
    const StageCarrier::Scope carried(carrier ? &*carrier : StageCarrier::current());
    const FusedRun::Scope fused(*fused_, record.fused);
    record.op->handle.callBoxed(stack);
  } catch (...) {
    running_ = kNone;
    throw;
  }
  running_ = kNone;
  OSLO_CHECK(saved_ == record.saved.size(), "checkpoint: running again, operator ", number_ + 1,
             ", ", record.op->name, ", saved ", saved_, " tensors, it had saved ",
             record.saved.size(), kSame);
  note_results(record, stack, first);
}

void Rerun::note_results(const OperatorRecord& record, torch::jit::Stack& stack, size_t first) {
  size_t next = 0;
  for (size_t i = first; i < stack.size(); ++i) {
    stack[i] = with_tensors_in(stack[i], [&](const at::Tensor& tensor) {
      while (next < record.results.size() && !record.results[next].defined) ++next;
      OSLO_CHECK(next < record.results.size() &&
                     tensor.sizes() == c10::IntArrayRef(record.results[next].sizes) &&
                     tensor.scalar_type() == record.results[next].dtype,
                 "checkpoint: running again, operator ", number_ + 1, ", ", record.op->name,
                 ", gives ", tensor.scalar_type(), " ", tensor.sizes(), ", it gave ",
                 next < record.results.size() ? shape_of(record.results[next]) : "less", kSame);
      const MetTensor& result = record.results[next++];
      if (result.storage == kNone) return tensor;
      const MetStorage& storage = segment_.storages[result.storage];
      // Views of what is kept are views of it again.
      const bool made_it = storage.makers.front() == number_;
      if (storage.kept && made_it) return result_of_skipped(result);
      if (wanted_[result.storage]) memory_[result.storage] = local_of(tensor).storage();
      return tensor;
    });
  }
}

at::Tensor Rerun::result_of_skipped(const MetTensor& result) const {
  if (!result.defined) return {};
  at::Tensor tensor;
  if (result.kept.defined()) {
    tensor = at::detach(result.kept);
  } else {
    const MetStorage& storage = segment_.storages[result.storage];
    tensor = lay(result.geometry, storage.kept ? storage.content : c10::Storage());
    if (result.whole) tensor = wrap_placed({tensor, result.whole});
  }
  // LibTorch hands histories to integers, too (masks of attention).
  if (result.requires_grad &&
      (at::isFloatingType(result.dtype) || at::isComplexType(result.dtype))) {
    tensor.set_requires_grad(true);
  }
  return tensor;
}

void Rerun::skip(const OperatorRecord& record, torch::jit::Stack& stack) const {
  const OperatorTap::Lifted lifted;
  const c10::AutoGradMode no_gradients(false);
  const size_t first = stack.size() - record.op->arguments;
  std::vector<c10::IValue> results = record.numbers;
  if (!record.written.empty() || record.op->metadata) {  // they are what was written
    for (size_t i = 0; i < record.op->arguments; ++i) {
      const c10::AliasInfo* const alias = record.op->schema->arguments()[i].alias_info();
      if (results.size() == record.op->schema->returns().size()) break;
      if (alias != nullptr && alias->isWrite()) results.push_back(stack[first + i]);
    }
  } else {
    size_t next = 0;
    for (const int size : record.list_sizes) {
      if (size == kNone) {
        results.emplace_back(result_of_skipped(record.results[next++]));
        continue;
      }
      std::vector<at::Tensor> list;
      for (int i = 0; i < size; ++i) list.push_back(result_of_skipped(record.results[next++]));
      results.emplace_back(list);
    }
  }
  torch::jit::drop(stack, record.op->arguments);
  for (c10::IValue& result : results) stack.push_back(std::move(result));
}

UnpackSavedTensor Rerun::pack(const at::Tensor& saved) {
  if (saved.is_meta()) return {};
  c10::ArrayRef<std::weak_ptr<SavedSlot>> slots;
  size_t place = 0;
  if (running_ != kNone) {
    slots = segment_.operators[running_].saved;
    place = saved_++;
  } else {
    const auto found = segment_.saved_between.find(number_);
    if (found != segment_.saved_between.end()) slots = found->second;
    place = saved_between_[number_]++;
  }
  // Nobody goes back through the graph that is recorded now, so that it need not hold anything.
  const UnpackSavedTensor nothing = [] { return at::Tensor(); };
  if (place >= slots.size()) return nothing;  // the count is compared later
  if (const auto slot = slots[place].lock(); slot && !slot->kept) fill(*slot, saved);
  return nothing;
}

void Rerun::end() {
  OSLO_CHECK(number_ == static_cast<int>(segment_.operators.size()),
             "checkpoint: running again, the function ended after ", number_,
             " operators, there "
             "were ",
             segment_.operators.size(), " before; the next was ",
             segment_.operators[number_].op->name, kSame);
  for (const auto& [place, slots] : segment_.saved_between) {
    const auto found = saved_between_.find(place);
    const size_t saved = found == saved_between_.end() ? 0 : found->second;
    OSLO_CHECK(saved == slots.size(), "checkpoint: running again, ", saved,
               " tensors were saved "
               "after operator ",
               place, ", it had been ", slots.size(), kSame);
  }
  segment_.for_each_slot([&](SavedSlot& slot, int number) {
    if (slot.kept || number == kNone || needed_[number]) return;
    const c10::Storage& memory = memory_[slot.storage];
    const SavedGeometry& lies = slot.geometry;
    OSLO_CHECK(
        memory && at::detail::computeStorageNbytes(lies.sizes, lies.strides, lies.dtype.itemsize(),
                                                   lies.offset) <= memory.nbytes(),
        "checkpoint: what operator ", number + 1, ", ", segment_.operators[number].op->name,
        ", had saved was not computed when the function ran again");
    fill(slot, lay(lies, memory));
  });
}

}  // namespace oslo::recompute
