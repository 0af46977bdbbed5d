#include <ATen/ATen.h>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/door/initializer_guard.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/engine/in_place.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// new_zeros and its like take only dtype and device from the placed tensor.
void new_tensor(Call& call) {
  refuse_joined_gradients(call.tensor(0));
  std::vector<c10::IValue> arguments;
  for (size_t i = 0; i < call.size(); ++i) arguments.push_back(call.argument(i));
  arguments[0] = call.value(0).local.detach();
  call.result_plain(call.call_with(std::move(arguments))[0]);
}

/// Operators on storage and strides, which a tensor in parts does not have.
void refused(Call& call) {
  fail(call.name(),
       " on a tensor that is cut over ranks cannot be done, as it speaks of one "
       "storage; use reshape or slice operators, or oslo::full_tensor(t) first");
}

void refused_tangent(Call& call) {
  refuse_tangents(call.name());
}

/// As torch::load sets a parameter to what a file holds: a tensor of the whole, of which this rank
/// takes its part.
void set_to(Call& call) {
  const at::Tensor target = call.tensor(0), source = call.tensor(1);
  const Mark* mark = mark_of(target);
  if (mark == nullptr || is_placed(source)) return refused(call);
  const auto sizes = mark->layout->global_sizes(target.sizes());
  OSLO_CHECK(source.sizes() == c10::IntArrayRef(sizes) && source.dtype() == target.dtype(),
             "parallel parameter ", mark->name, " has shape ", c10::IntArrayRef(sizes),
             " over all ranks and dtype ", target.dtype(), ", it is set (torch::load does so) to ",
             source.sizes(), ", ", source.dtype(),
             "; load a file of the unparallelized model, or use parallel.from_parallelized(path)");
  write_to(target, {source, nullptr}, call.name());
  call.result_plain(target);
}

/// eye (n, [m,] out), by which torch::nn::init::eye_ fills a matrix.
void eye_into(Call& call) {
  const size_t out = call.size() - 1;
  const at::Tensor target = call.tensor(out);
  refuse_initializers_of_parts(target);
  const int64_t rows = call.integer(0), columns = out == 1 ? rows : call.integer(1);
  const Mark* const mark = mark_of(target);
  const auto sizes =
      mark != nullptr ? mark->layout->global_sizes(target.sizes())
                      : c10::SmallVector<int64_t, 6>(target.sizes().begin(), target.sizes().end());
  OSLO_CHECK(c10::IntArrayRef(sizes) == c10::IntArrayRef({rows, columns}), call.name(), " of ",
             rows, " x ", columns, " would resize a tensor of shape ", c10::IntArrayRef(sizes),
             " that is cut over ranks or held by pipeline stages; give it that tensor's sizes");
  const auto options = at::TensorOptions(target.dtype()).device(target.device());
  write_to(target, {at::eye(rows, columns, options), nullptr}, call.name());
  call.result_plain(target);
}

}  // namespace

void add_creation_rules(RuleTable& table) {
  table.add({"aten::new_zeros", "aten::new_ones", "aten::new_empty", "aten::new_full"}, new_tensor);
  table.add({"aten::as_strided", "aten::as_strided_", "aten::set_", "aten::set_.source_Storage",
             "aten::set_.source_Storage_storage_offset", "aten::resize_", "aten::resize_as_"},
            refused);
  table.add({"aten::set_.source_Tensor"}, set_to);
  table.add({"aten::eye.out", "aten::eye.m_out"}, eye_into);
  table.add({"aten::_make_dual", "aten::_make_dual_copy"}, refused_tangent);
}

}  // namespace oslo
