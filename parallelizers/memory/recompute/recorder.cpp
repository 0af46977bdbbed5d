#include "parallelizers/memory/recompute/recorder.h"

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/detach.h>

#include <algorithm>

#include "mpu/base/error.h"
#include "parallelizers/memory/recompute/operator_flops.h"
#include "parallelizers/memory/recompute/record/needs.h"
#include "parallelizers/memory/recompute/record/recorded_kinds.h"
#include "parallelizers/memory/recompute/take_saved.h"
#include "parallelizers/memory/recompute/try_segment.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/local_of.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/door/tapped_call.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo::recompute {
namespace {

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_quantized() && !tensor.key_set().has(kPlacedKey);
}

/// Whether other ranks have parts of it, or it is on a pipeline stage.
bool is_divided(const at::Tensor& tensor) {
  if (!tensor.key_set().has(kPlacedKey)) return false;
  if (const auto* impl = placed_impl(tensor); impl != nullptr && impl->partial()) return true;
  const LayoutPtr lies = layout(tensor);
  return lies && (!lies->whole() || lies->resident());
}

/// Of a placed tensor that nothing cuts, and all ranks hold; null of any other tensor.
LayoutPtr layout_of_whole(const at::Tensor& tensor) {
  const PlacedTensorImpl* const impl = placed_impl(tensor);
  if (impl == nullptr || is_divided(tensor) || !is_plain(impl->value().local)) return nullptr;
  return impl->value().layout;
}

}  // namespace

Recorder::Recorder(std::shared_ptr<Segment> segment, KeepIf keep_if)
    : segment_(std::move(segment)), keep_if_(std::move(keep_if)), memory_(*segment_) {
  // A block's; records are large.
  constexpr size_t kSome = 64;
  segment_->operators.reserve(kSome);
  segment_->storages.reserve(kSome);
}

void Recorder::run(const OperatorEntry& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  if (op.between_ranks && end_) {
    const auto end = std::move(end_);
    end();  // this recorder is gone
    return run_lifted(op, keys, stack);
  }
  if (run_by_definition(op, keys, stack)) return;
  OSLO_CHECK(!op.between_ranks, "checkpoint: the function calls ", op.name,
             ", a process group's own collective, which would move data again in backward; call it "
             "outside of the function");
  const int number = static_cast<int>(segment_->operators.size());
  OperatorRecord record;
  record.op = &op;
  {
    const size_t first = stack.size() - op.arguments;
    const std::vector<c10::IValue> arguments(stack.begin() + static_cast<std::ptrdiff_t>(first),
                                             stack.end());
    note_arguments(record, arguments);
    if (record.placed && !ranks_) ranks_.emplace(arguments);
    note_written(record, arguments);
    note_random(record, arguments);
    if (!segment_->again) note_call(record, arguments);
    makes_memory_ = makes_memory(op, arguments);
    record.always = makes_memory_ || op.handle.hasTag(at::Tag::inplace_view);
    record.asked = record.to_keep = keep_if_ && keep_if_(op.name, arguments);
    const bool weighed = segment_->weighs || (record.to_keep && segment_->keep_at_most < 1);
    const OperatorTap::Lifted lifted;
    const FusedRun::Scope fused(*fused_, record.fused, /*alone=*/record.to_keep);
    in_operator_ = true;
    try {
      run_with_carrier(record, keys, stack);
    } catch (...) {
      in_operator_ = false;
      of_operator_.clear();
      throw;
    }
    in_operator_ = false;
    const auto results = c10::ArrayRef<c10::IValue>(stack).slice(first);
    if (weighed) record.flops = flops_of(op, arguments, results);
    note_results(record, number, results);
  }
  for (const auto& slot : of_operator_) {
    settle(*slot);
    record.saved.emplace_back(slot);
  }
  of_operator_.clear();
  segment_->operators.push_back(std::move(record));
}

void Recorder::run_with_carrier(OperatorRecord& record, c10::DispatchKeySet keys,
                                torch::jit::Stack& stack) {
  StageCarrier* const carrier = StageCarrier::current();
  if (carrier == nullptr) return run_lifted(*record.op, keys, stack);
  auto log = std::make_shared<CarriedLog>();
  LoggedCarrier logged(*carrier, *log);
  const StageCarrier::Scope scope(&logged);
  run_lifted(*record.op, keys, stack);
  if (record.placed) record.carried = std::move(log);
}

void Recorder::note_call(OperatorRecord& record, std::vector<c10::IValue> arguments) {
  size_t next = 0;
  for (c10::IValue& argument : arguments) {
    size_t first = next;
    for_each_place(argument, [&](const at::Tensor& tensor) {
      MetTensor& met = record.arguments[next++];
      if (!tensor.defined()) return;
      const bool inside = met.storage != kNone && !segment_->storages[met.storage].outside;
      const auto made = makers_.find(tensor.unsafeGetTensorImpl());
      if (made != makers_.end()) {
        met.maker = made->second.first;
        met.place = made->second.second;
        const MetTensor& result = segment_->operators[met.maker].results[met.place];
        if (tensor.requires_grad() && tensor.is_leaf() && !result.requires_grad) {
          segment_->no_replay =
              "the program makes a leaf that it asks a gradient of, for " + record.op->name;
        }
      } else if (inside) {
        segment_->no_replay =
            "the program makes a tensor without an operator, for " + record.op->name;
      }
    });
    argument = with_each_place(argument, [&](const at::Tensor& tensor) {
      return record.arguments[first++].maker == kNone ? tensor : at::Tensor();
    });
  }
  record.call = ReplayedCall{std::move(arguments), c10::impl::tls_local_dispatch_key_set(),
                             c10::AutogradState::get_tls_state(), AutocastState()};
}

void Recorder::note_arguments(OperatorRecord& record, c10::ArrayRef<c10::IValue> arguments) {
  record.arguments.reserve(arguments.size());
  record.makes_statistics = updates_statistics(*record.op, arguments);
  for (size_t i = 0; i < arguments.size(); ++i) {
    for_each_place(arguments[i], [&](const at::Tensor& tensor) {
      MetTensor met;
      met.statistics = record.makes_statistics && (i == 3 || i == 4);
      if (tensor.defined()) {
        met.defined = true;
        met.sizes = tensor.sizes();
        met.dtype = tensor.scalar_type();
        met.storage = memory_.meet(tensor, /*outside=*/true);
        record.placed |= is_divided(tensor);
        if (met.storage != kNone) {
          met.writes = segment_->storages[met.storage].writes;
          if (segment_->storages[met.storage].outside) note_outside(tensor, met.storage);
        }
      }
      record.arguments.push_back(std::move(met));
    });
  }
}

void Recorder::note_outside(const at::Tensor& tensor, int storage) {
  segment_->storages[storage].leaf |= tensor.is_leaf();
  const auto* const impl = tensor.unsafeGetTensorImpl();
  if (tensor.is_inference()) return;
  const c10::VariableVersion& version = impl->version_counter();
  for (const OutsideTensor& known : segment_->outside) {
    if (known.impl == impl && known.storage == storage &&
        known.version.current_version() == version.current_version()) {
      return;
    }
  }
  segment_->outside.push_back({impl, storage, version});
}

void Recorder::note_written(OperatorRecord& record, c10::ArrayRef<c10::IValue> arguments) {
  if (record.makes_statistics || record.op->metadata) return;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = record.op->schema->arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for_each_tensor_in(arguments[i], [&](const at::Tensor& tensor) {
      const int storage = memory_.find(tensor);
      if (storage != kNone) record.written.push_back(storage);
    });
  }
}

void Recorder::note_random(OperatorRecord& record, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<at::Generator> generators;
  const auto add = [&](const at::Generator& generator) {
    if (generator.defined() &&
        std::find(generators.begin(), generators.end(), generator) == generators.end()) {
      generators.push_back(generator);
    }
  };
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator()) add(argument.toGenerator());
  }
  if (!record.op->random && generators.empty()) return;
  if (generators.empty()) {
    if (drops_nothing(*record.op, arguments)) return;
    add(at::globalContext().defaultGenerator(at::kCPU));
    for_each_tensor(arguments, [&](const at::Tensor& tensor) {
      if (tensor.is_cuda()) add(at::globalContext().defaultGenerator(tensor.device()));
    });
    if (const ContextPtr context = context_of(arguments)) add(context->sharded_generator());
  }
  for (at::Generator generator : generators) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    record.random.emplace_back(generator, generator.get_state());
  }
}

void Recorder::note_results(OperatorRecord& record, int number,
                            c10::ArrayRef<c10::IValue> results) {
  for (const int written : record.written) {
    MetStorage& storage = segment_->storages[written];
    ++storage.writes;
    storage.makers.push_back(number);
    if (!record.op->in_place || !storage.may_keep || storage.outside) continue;
    // What is asked to be kept is kept as its last writer leaves it.
    record.to_keep = memory_.find(results[0].toTensor()) == written;
    storage.may_keep = record.to_keep;
  }
  record.results.reserve(results.size());
  for (const c10::IValue& result : results) {
    const bool list = result.isTensorList();
    if (!list && !result.isTensor()) {
      record.rebuildable = false;
      continue;
    }
    record.list_sizes.push_back(list ? static_cast<int>(result.toTensorVector().size()) : kNone);
    for_each_place(result, [&](const at::Tensor& tensor) {
      MetTensor met;
      if (tensor.defined()) {
        met.defined = true;
        met.sizes = tensor.sizes();
        met.dtype = tensor.scalar_type();
        met.requires_grad = tensor.requires_grad();
        met.plain = is_plain(tensor);
        met.storage = memory_.meet(tensor, /*outside=*/false);
        met.whole = layout_of_whole(tensor);
        // A marked one (a weight's cast) costs less than to be remembered.
        record.placed |= tensor.key_set().has(kPlacedKey) && !met.whole;
        if (!segment_->again) {
          note_maker(tensor, number, static_cast<int>(record.results.size()), record.op->in_place);
        }
        if (met.plain || met.whole) met.geometry = geometry_of(local_of(tensor));
        if (met.storage == kNone) {
          record.always = true;
        } else {
          MetStorage& storage = segment_->storages[met.storage];
          met.writes = storage.writes;
          if (storage.makers.empty() || storage.makers.back() != number) {
            storage.makers.push_back(number);
          }
          // Masks of dropout are drawn again.
          const bool decides = at::isIntegralType(met.dtype, /*includeBool=*/true) &&
                               !(record.op->random && met.dtype == at::kBool);
          // Replaying would not fill it.
          storage.constant |= !segment_->again && makes_memory_ && storage.makers.size() == 1;
          if ((decides || record.to_keep || storage.constant) && !storage.outside) {
            storage.may_keep |= decides || record.to_keep;
            storage.asked |= record.to_keep && !decides;
            if (met.plain || met.whole) {
              storage.content = local_of(tensor).storage();
            } else if (placed_impl(tensor) != nullptr) {
              met.kept = at::detach(tensor);
            }
          }
        }
      }
      record.results.push_back(std::move(met));
    });
  }
  if (record.results.empty()) {
    record.numbers.assign(results.begin(), results.end());
    record.rebuildable = true;
  }
}

void Recorder::note_maker(const at::Tensor& tensor, int number, int place, bool in_place) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  const int storage = memory_.find(tensor);
  // What it was given, and views of what was there before, are there when it runs again.
  if (storage != kNone && segment_->storages[storage].outside) return;
  const auto [maker, is_new] = makers_.emplace(impl, std::make_pair(number, place));
  if (is_new) made_.emplace_back(tensor.getIntrusivePtr());
  // From then on it may have another shape, in which it is kept.
  if (in_place) maker->second = {number, place};
}

UnpackSavedTensor Recorder::pack(const at::Tensor& saved) {
  // A shape of what another pipeline stage computes: backward does not come there.
  if (saved.is_meta()) return {};
  auto slot = std::make_shared<SavedSlot>();
  slot->value = saved;
  if (in_operator_) {
    of_operator_.push_back(slot);
  } else {
    settle(*slot);
    segment_->saved_between[static_cast<int>(segment_->operators.size())].emplace_back(slot);
  }
  return [slot, segment = segment_] { return take_saved(*segment, *slot); };
}

void Recorder::settle(SavedSlot& slot) {
  slot.storage = memory_.find(slot.value);
  if (slot.storage == kNone) return;
  if (is_plain(slot.value)) {
    slot.geometry = geometry_of(slot.value);
  } else if (!segment_->storages[slot.storage].outside) {
    slot.storage = kNone;
  }
}

void Recorder::note_end() {
  for (OutsideTensor& tensor : segment_->outside) {
    tensor.current = tensor.version.current_version();
  }
}

void Recorder::end() {
  note_end();
  if (ranks_) {
    const OperatorTap::Lifted lifted;
    segment_->given_up = agree_on_given_up(*segment_, *ranks_);
  }
  decide_needs(*segment_);
  segment_->ended = true;
}

}  // namespace oslo::recompute
