#include "parallelizers/placement/engine/stage_read.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/libtorch/attention_asks.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/elsewhere/shape_call.h"
#include "parallelizers/placement/residency/stage_carrier.h"

namespace oslo {
namespace {

/// Whether the kernels of an operator without tensors as results look at elements: those that
/// stand for all devices look at sizes.
bool has_kernel_for_shapes(const OperatorEntry& op) {
  using c10::DispatchKey;
  return op.handle.hasKernelForDispatchKey(DispatchKey::Meta) ||
         op.handle.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

/// Rows by a mask are as many as it has ones; rows by numbers as many as there are numbers.
bool indexes_by_mask(const Call& call) {
  bool mask = false;
  for_each_tensor(call.arguments().slice(1), [&](const at::Tensor& index) {
    mask |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
  });
  return mask;
}

/// Rows by a mask keep the cut of their columns.
bool gives_cut_tensors(const Call& call) {
  if (!call.op().handle.hasTag(at::Tag::dynamic_output_shape) &&
      call.op().name != "aten::index.Tensor") {
    return false;
  }
  const auto operands = call.operands();
  return std::any_of(operands.begin(), operands.end(),
                     [](const Value& operand) { return operand.cut(); });
}

/// Whether two tensors that are compared differ whatever is in them, or may be said to.
bool differ_unseen(const Call& call) {
  if (call.op().name != "aten::equal") return false;
  const auto operands = call.operands();
  return operands[0].sizes() != operands[1].sizes() || attention_asks();
}

/// The other stages learn of a tensor's shape, not of its cut.
void run_where_it_is(Call& call, c10::function_ref<void()> rule) {
  if (gives_cut_tensors(call)) {
    call.gather("other pipeline stages know its shape only when they are told");
  } else {
    rule();
  }
}

/// Whether the thread is inside the rule of a call whose results everybody is told.
thread_local bool inside_read = false;

/// What such a rule reads on its way (one_hot: the largest class) is its own: the ranks of other
/// stages do not run it, and expect one message.
class InsideRead {
 public:
  InsideRead() : outer_(std::exchange(inside_read, true)) {}
  ~InsideRead() { inside_read = outer_; }
  InsideRead(const InsideRead&) = delete;
  InsideRead& operator=(const InsideRead&) = delete;

 private:
  const bool outer_;
};

}  // namespace

bool reads(const Call& call) {
  const OperatorEntry& op = call.op();
  if (!reads_elements(op)) return false;
  if (op.name == "aten::index.Tensor") return indexes_by_mask(call);
  if (op.name == "aten::equal") return !call.tensor(0).is_same(call.tensor(1));
  if (op.name == "aten::allclose") return true;  // its kernel stands for all devices, and reads
  if (op.handle.hasTag(at::Tag::dynamic_output_shape)) return true;
  return !has_kernel_for_shapes(op);
}

bool reads_for_all(const Call& call) {
  if (call.place().stages.empty()) return false;
  const Residence& residence = *call.residence();
  const bool known = residence.imagined() != nullptr || !residence.pipeline();
  OSLO_CHECK(known || !reads_lengths(call.op()), call.name(), " on pipeline ",
             call.place().stages.to_string(),
             " needs the lengths of packed sequences, which ranks of other stages do not have; use "
             "padded sequences there");
  StageCarrier* const carrier = StageCarrier::current();
  return !inside_read && carrier != nullptr && carrier->reads() != nullptr && reads(call);
}

void read_for_all(Call& call, c10::function_ref<void()> rule) {
  ReadSharer& reads = *StageCarrier::current()->reads();
  call.operands();  // what comes from other stages comes before, and in one order on all ranks
  if (differ_unseen(call)) return call.result_plain(false);
  if (call.residence()->imagined() !=
      nullptr) {  // nobody has it: whoever looks for reads notes this one
    reads.share_read(call.place().stages, {});
    const InsideRead inside;
    return rule();
  }
  if (call.place().elsewhere) {
    for (c10::IValue& result : reads.share_read(call.place().stages, {})) {
      call.result_plain(std::move(result));
    }
    return;
  }
  {
    const InsideRead inside;
    run_where_it_is(call, rule);
  }
  std::vector<c10::IValue> results(call.results().begin(), call.results().end());
  for (const c10::IValue& result : results) {
    for_each_tensor_in(result, [&](const at::Tensor& tensor) {
      const LayoutPtr layout = oslo::layout(tensor);
      OSLO_CHECK(!layout || layout->whole(), call.name(), " reads elements on pipeline ",
                 call.place().stages.to_string(), ", and its result there is cut over ranks (",
                 layout ? layout->to_string() : "", "); take oslo::full_tensor(t) first");
    });
  }
  reads.share_read(call.place().stages, std::move(results));
}

}  // namespace oslo
