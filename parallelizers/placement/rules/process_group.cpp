#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/transport/counted_process_group.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// An argument, or a result, with every tensor replaced: alone, in a list, in a list of lists.
template <typename Change>
c10::IValue with_all_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  }
  if (!value.isList()) return value;
  const c10::List<c10::IValue> list = value.toList();
  c10::impl::GenericList changed(list.elementType());
  changed.reserve(list.size());
  for (const c10::IValue& element : list) changed.push_back(with_all_tensors(element, change));
  return changed;
}

constexpr char kSharedOut[] =
    ", of which data replicas have parts (zero_optimization): gradients are averages over them "
    "already, leave this call out";

std::string of_parameter(const Mark& mark) {
  return c10::str(" of parallel parameter ", mark.name, ", or of a gradient or state of it,");
}

/// Ranks of the call's group that hold another part of the tensor than this one. A group that was
/// not made here does not say which ranks it has.
void refuse_other_parts(const Call& call, const Mark& mark) {
  for (const c10::IValue& argument : call.arguments()) {
    if (!argument.isCustomClass()) continue;
    const auto group = argument.toCustomClass<c10d::ProcessGroup>();
    const auto* counted = dynamic_cast<const CountedProcessGroup*>(group.get());
    const int replicas = mark.layout->context()->replica_axis;
    if (counted == nullptr) {
      OSLO_CHECK(replicas < 0 || (*mark.layout)[replicas].whole(), call.name(), of_parameter(mark),
                 kSharedOut);
      return;
    }
    for (int axis = 0; axis < mark.layout->axes(); ++axis) {
      if ((*mark.layout)[axis].whole()) continue;
      const Group& line = *mark.layout->group(axis);
      for (const int rank : counted->ranks()) {
        const bool other =
            rank != line.ranks()[line.rank()] &&
            std::find(line.ranks().begin(), line.ranks().end(), rank) != line.ranks().end();
        OSLO_CHECK(!other, call.name(), of_parameter(mark), " over ranks ", counted->ranks(),
                   ": rank ", rank, " holds another part of it than rank ",
                   line.ranks()[line.rank()],
                   axis == replicas ? kSharedOut
                                    : "; use a group whose ranks hold the same part, such as "
                                      "mpu.get_data_parallel_group()");
      }
    }
    return;
  }
}

/// Runs the operator on aliases of the tensors' memory: no mark on them, so that whatever thread
/// moves it sees ordinary tensors.
void act_on_memory(Call& call, bool combines) {
  call.check_has_elements("moves values between ranks");
  std::vector<std::pair<at::Tensor, at::Tensor>> aliases;
  const auto local = [&](const at::Tensor& tensor) {
    OSLO_CHECK(placed_impl(tensor) == nullptr, call.name(), " on a tensor of shape ",
               tensor.sizes(),
               " that is cut over ranks (an activation, or a view of parallel parameters): no rank "
               "has memory of that shape; call it on the parameter or gradient itself, or on "
               "oslo::local_tensor(t), this rank's part, of each one before they are joined");
    const Mark* mark = mark_of(tensor);
    if (mark == nullptr) return tensor;
    if (combines) refuse_other_parts(call, *mark);
    aliases.emplace_back(unmarked_alias(tensor), tensor);
    return aliases.back().first;
  };
  const auto given = [&](const at::Tensor& tensor) {
    for (const auto& [alias, original] : aliases) {
      if (alias.is_same(tensor)) return original;
    }
    return tensor;
  };
  std::vector<c10::IValue> arguments;
  for (const c10::IValue& argument : call.arguments()) {
    arguments.push_back(with_all_tensors(argument, local));
  }
  const auto results = call.call_with(std::move(arguments));
  // Who moves memory counts no write, and casts of a parameter are to be made again.
  for (const auto& [alias, original] : aliases) {
    if (is_followed(original) && !original.is_inference()) {
      original.unsafeGetTensorImpl()->bump_version();
    }
  }
  for (const c10::IValue& result : results) {
    call.result_plain(with_all_tensors(result, given));
  }
  // The backend's writes count on no tensor: views that were gathered are to be taken again.
  call.context()->count_write();
}

void move_local_memory(Call& call) {
  act_on_memory(call, /*combines=*/false);
}

/// Of operators after which ranks hold what several gave, or one other: of parts of different
/// places that is nothing.
void combine_local_memory(Call& call) {
  act_on_memory(call, /*combines=*/true);
}

void refuse_by_group_name(Call& call) {
  fail(call.name(),
       " on a tensor that is cut over ranks: call the process group's own collective "
       "(group->allreduce) on the parameter or gradient, which acts on this rank's part in place, "
       "or pass oslo::local_tensor(t)");
}

Rule rule_of_collective(std::string_view name) {
  const bool combines = name.find("reduce") != std::string_view::npos || name == "c10d::broadcast_";
  return combines ? combine_local_memory : move_local_memory;
}

Rule rule_by_group_name(std::string_view) {
  return refuse_by_group_name;
}

}  // namespace

void add_process_group_rules(RuleTable& table) {
  table.add_namespace("c10d::", rule_of_collective);
  for (const char* space : {"_c10d_functional::", "_c10d_functional_autograd::", "symm_mem::"}) {
    table.add_namespace(space, rule_by_group_name);
  }
}

}  // namespace oslo
