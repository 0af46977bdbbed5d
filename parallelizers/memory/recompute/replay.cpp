#include <c10/util/ScopeExit.h>

#include "parallelizers/memory/recompute/record/met_memory.h"
#include "parallelizers/memory/recompute/rerun.h"

namespace oslo::recompute {
namespace {

/// The results of operators that ran again, as long as others need them.
class Results {
 public:
  Results(const Segment& segment, const std::vector<bool>& needed)
      : tensors_(segment.operators.size()), uses_(segment.operators.size()) {
    for (size_t i = 0; i < needed.size(); ++i) {
      tensors_[i].resize(segment.operators[i].results.size());
      if (!needed[i]) continue;
      for (const MetTensor& argument : segment.operators[i].arguments) {
        if (argument.maker != kNone) ++uses_[argument.maker];
      }
    }
  }

  /// Undefined where its operator did not run, and nobody has had it.
  at::Tensor& of(const MetTensor& argument) { return tensors_[argument.maker][argument.place]; }
  void used(const MetTensor& argument) {
    if (argument.maker != kNone && --uses_[argument.maker] == 0) tensors_[argument.maker].clear();
  }
  void set(size_t number, c10::ArrayRef<c10::IValue> results) {
    if (uses_[number] == 0) return;
    size_t place = 0;
    for (const c10::IValue& result : results) {
      for_each_place(result, [&](const at::Tensor& tensor) {
        if (place < tensors_[number].size()) tensors_[number][place++] = tensor;
      });
    }
  }

 private:
  std::vector<std::vector<at::Tensor>> tensors_;
  std::vector<int> uses_;
};

}  // namespace

void Rerun::replay() {
  Results results(segment_, needed_);
  for (; number_ < static_cast<int>(segment_.operators.size()); ++number_) {
    if (!needed_[number_]) continue;
    const OperatorRecord& record = segment_.operators[number_];
    torch::jit::Stack stack;
    size_t next = 0;
    for (const c10::IValue& argument : record.call->arguments) {
      const auto made = [&](const at::Tensor& tensor) {
        const MetTensor& met = record.arguments[next++];
        if (met.maker == kNone) return tensor;
        // What an operator does to its place in memory (squeeze_) is for all who use it.
        at::Tensor& again = results.of(met);
        if (!again.defined()) {
          again = result_of_skipped(segment_.operators[met.maker].results[met.place]);
        }
        return again;
      };
      stack.push_back(with_each_place(argument, made));
    }
    {
      const c10::impl::ForceDispatchKeyGuard keys(record.call->keys);
      const auto own = c10::AutogradState::get_tls_state();
      c10::AutogradState::set_tls_state(record.call->gradients);
      const auto restored = c10::make_scope_exit([&] { c10::AutogradState::set_tls_state(own); });
      const AutocastState::Scope autocast(record.call->autocast);
      run_needed(record, stack);
    }
    results.set(number_, stack);
    for (const MetTensor& argument : record.arguments) results.used(argument);
  }
}

}  // namespace oslo::recompute
