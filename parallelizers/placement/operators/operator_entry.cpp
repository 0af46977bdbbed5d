#include "parallelizers/placement/operators/operator_entry.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/operators/user_rule_registry.h"

namespace oslo {
namespace {

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

bool has_write_alias(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// Of "aten::elu_", "aten::elu", which has the same overloads mostly.
std::optional<c10::OperatorHandle> functional(const c10::OperatorName& name) {
  if (name.name.size() < 2 || name.name.back() != '_') return std::nullopt;
  return c10::Dispatcher::singleton().findSchema(
      {name.name.substr(0, name.name.size() - 1), name.overload_name});
}

/// Element by element: by LibTorch's tag or our table. What writes in place has the tag more rarely
/// than what it is named after.
bool is_pointwise(const c10::OperatorHandle& op, const RuleTable& table) {
  const auto listed = [&](const c10::OperatorHandle& handle) {
    return handle.hasTag(at::Tag::pointwise) ||
           table.listed_pointwise(full_name(handle.operator_name()));
  };
  if (listed(op)) return true;
  const auto named_after = functional(op.operator_name());
  return named_after && listed(*named_after);
}

/// How the operator uses a weight.
UseKind use_of(std::string_view name) {
  constexpr std::string_view kProducts[] = {"aten::linear", "aten::matmul",     "aten::mm",
                                            "aten::addmm",  "aten::addmm_",     "aten::bmm",
                                            "aten::einsum", "aten::conv1d",     "aten::conv2d",
                                            "aten::conv3d", "aten::convolution"};
  if (name == "aten::embedding") return UseKind::lookup;
  return std::ranges::find(kProducts, name) != std::end(kProducts) ? UseKind::product
                                                                   : UseKind::none;
}

bool gives_same_weight(std::string_view name) {
  return name == "aten::t" || name == "aten::transpose.int" || name == "aten::numpy_T" ||
         name == "aten::alias" || name == "aten::detach" || name == "aten::_to_copy" ||
         name.starts_with("aten::to.");
}

/// Entries are constants derived from the operator registry, shared by all ranks.
const OperatorEntry* shared_entry(const c10::OperatorHandle& handle) {
  static std::mutex mutex;
  static auto& entries =
      *new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorEntry>>();
  const std::lock_guard<std::mutex> lock(mutex);
  auto& entry = entries[&handle.schema()];
  if (!entry) {
    entry = std::make_unique<OperatorEntry>(handle);
    entry->user_rule = take_user_rule(entry->name);
    if (entry->user_rule) entry->rule = entry->user_rule->run;
  }
  return entry.get();
}

/// What operators' schemas do not say of them.
struct Property {
  const char* name;
  bool OperatorEntry::*flag;
};
constexpr Property kProperties[] = {
    {"aten::detach", &OperatorEntry::keeps_mark},
    {"aten::clone", &OperatorEntry::keeps_mark},
    {"aten::alias", &OperatorEntry::keeps_mark},
    {"aten::zeros_like", &OperatorEntry::keeps_mark},
    {"aten::ones_like", &OperatorEntry::keeps_mark},
    {"aten::empty_like", &OperatorEntry::keeps_mark},
    {"aten::empty_like", &OperatorEntry::uninitialized},
    {"aten::zeros_like", &OperatorEntry::shape_alone},
    {"aten::ones_like", &OperatorEntry::shape_alone},
    {"aten::empty_like", &OperatorEntry::shape_alone},
    {"aten::full_like", &OperatorEntry::shape_alone},
    {"aten::full_like", &OperatorEntry::keeps_mark},
    {"aten::to.device", &OperatorEntry::keeps_mark},
    {"aten::to.dtype", &OperatorEntry::keeps_mark},
    {"aten::to.other", &OperatorEntry::keeps_mark},
    {"aten::to.dtype_layout", &OperatorEntry::keeps_mark},
    {"aten::contiguous", &OperatorEntry::keeps_mark},
    {"aten::_to_copy", &OperatorEntry::keeps_mark},
    {"aten::pin_memory", &OperatorEntry::keeps_mark},
    {"aten::detach_", &OperatorEntry::metadata},
    {"aten::requires_grad_", &OperatorEntry::metadata},
    {"aten::retain_grad", &OperatorEntry::metadata},
    {"aten::is_leaf", &OperatorEntry::metadata},
    {"aten::_version", &OperatorEntry::metadata},
    {"aten::_has_compatible_shallow_copy_type", &OperatorEntry::changes_data},
    {"aten::add.Tensor", &OperatorEntry::adds},
    {"aten::add_.Tensor", &OperatorEntry::adds},
    {"aten::dropout", &OperatorEntry::adds},
    {"aten::copy_", &OperatorEntry::writes_pointwise},
    {"aten::zero_", &OperatorEntry::clears},
    {"aten::gelu", &OperatorEntry::gelu},
    {"aten::to.dtype", &OperatorEntry::to_type},
};

}  // namespace

OperatorEntry::OperatorEntry(const c10::OperatorHandle& op)
    : handle(op), schema(&op.schema()), name(full_name(op.operator_name())) {
  const auto& arguments_of = schema->arguments();
  const RuleTable& table = RuleTable::instance();
  arguments = arguments_of.size();
  rule = table.find(name);
  use = use_of(name);
  same_weight = gives_same_weight(name);
  const auto& returns = schema->returns();
  const bool gives_tensor = !returns.empty() && *returns[0].type() == *c10::TensorType::get();
  // equal() carries the tag too, and returns one truth value.
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  // Numbers that are drawn (rrelu's slopes) are drawn for the whole.
  pointwise = gives_tensor && !random && is_pointwise(op, table);
  on_each = name.starts_with("aten::_foreach_") &&
            op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  composite = on_each || op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  for (size_t i = 0; i < arguments; ++i) {
    if (!has_write_alias(arguments_of[i])) continue;
    (arguments_of[i].kwarg_only() || i > 0 ? writes_out : in_place) = true;
  }
  view = arguments > 0 && !in_place && !returns.empty() && returns[0].alias_info() != nullptr &&
         !returns[0].alias_info()->isWrite();
  autocasts = op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU) ||
              op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA);
  for (const Property& property : kProperties) {
    if (name == property.name) this->*property.flag = true;
  }
  writes_pointwise |= pointwise && (in_place || writes_out);
  on_parts = keeps_mark || metadata || changes_data || writes_pointwise;
  only_pointwise = pointwise && returns.size() == 1 && arguments > 0 &&
                   *arguments_of[0].type() == *c10::TensorType::get() && !writes_out && !view &&
                   !autocasts && !gelu && !same_weight && !keeps_mark && !clears &&
                   !name.starts_with("aten::fill_") && !name.starts_with("aten::copy_");
  between_ranks = name.starts_with("c10d::");
}

bool is_of_libtorch(const OperatorEntry& op) {
  static constexpr std::array kNamespaces{
      "aten::", "prim::", "prims::", "c10d::", "_c10d_functional::", "quantized::", "mkldnn::"};
  return std::any_of(kNamespaces.begin(), kNamespaces.end(),
                     [&](const char* space) { return op.name.starts_with(space); });
}

const OperatorEntry& entry_of(const c10::OperatorHandle& handle) {
  // A direct-mapped cache in front of the map: a look-up takes no lock.
  constexpr size_t kSlots = 512;
  static std::array<std::atomic<const OperatorEntry*>, kSlots> cache{};
  const c10::FunctionSchema* schema = &handle.schema();
  auto& slot = cache[(reinterpret_cast<uintptr_t>(schema) / 64) % kSlots];
  const OperatorEntry* entry = slot.load(std::memory_order_acquire);
  if (entry == nullptr || entry->schema != schema) {
    entry = shared_entry(handle);
    slot.store(entry, std::memory_order_release);
  }
  return *entry;
}

}  // namespace oslo
