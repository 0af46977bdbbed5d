#include "parallelizers/placement/carrier/weight_casts.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>

#include "mpu/base/node_ptr.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/split_backward.h"
#include "parallelizers/placement/operators/operator_tap.h"

namespace oslo {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl>;

/// A tensor for as long as somebody else keeps its memory.
class WeakNumbers {
 public:
  WeakNumbers() = default;
  explicit WeakNumbers(const at::Tensor& numbers)
      : memory_(numbers.storage().getWeakStorageImpl()),
        like_(numbers.options()),
        sizes_(numbers.sizes().vec()),
        strides_(numbers.strides().vec()) {}

  /// Undefined where nobody does.
  at::Tensor lock() const {
    const auto memory = memory_.lock();
    if (!memory) return {};
    const BelowDoor below;
    return at::empty({0}, like_).set_(c10::Storage(memory), 0, sizes_, strides_);
  }

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> memory_{c10::intrusive_ptr<c10::StorageImpl>()};
  at::TensorOptions like_;
  std::vector<int64_t> sizes_, strides_;
};

/// Casts what comes back to the parameter's type. Until then it keeps the numbers for those who use
/// the cast once more: with the graph they go.
class CastBack final : public Node {
 public:
  CastBack(at::ScalarType type, const std::shared_ptr<SplitBackward>& split)
      : type_(type), has_halves_(split != nullptr), split_(split) {}

  std::string name() const override { return "OsloCastBack"; }

  variable_list apply(variable_list&& gradients) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
      copy_.reset();
    }
    if (!gradients[0].defined()) return {at::Tensor()};
    return {gradients[0].to(type_)};
  }

#if OSLO_NODES_COUNT_THEMSELVES
  /// The model remembers the node by a weak handle.
  void release_resources() override {
    copy_.reset();
    Node::release_resources();
  }
#endif

  /// False after a backward pass, and where the pass has other halves than `split`.
  bool serves(const std::shared_ptr<SplitBackward>& split) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !over_ && has_halves_ == (split != nullptr) && split == split_.lock();
  }

  void keep(const at::Tensor& copy) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!over_) copy_ = copy;
  }

 private:
  const at::ScalarType type_;
  std::mutex mutex_;
  bool over_ = false;
  at::Tensor copy_;
  const bool has_halves_;
  const std::weak_ptr<SplitBackward> split_;
};

/// A tensor over the same memory, without history.
at::Tensor alias_of(const at::Tensor& tensor) {
  const BelowDoor below;
  return tensor.detach();
}

/// Of pipeline stages what has memory of its own, and the parameter's mark, is a gradient unless
/// told otherwise.
at::Tensor marked_copy(const at::Tensor& local, const at::Tensor& parameter) {
  at::Tensor marked = marked_like(local, parameter);
  if (mark_of(parameter)->layout->resident()) set_made_like(marked);
  return marked;
}

at::Tensor numbers_of(const at::Tensor& parameter, at::ScalarType type) {
  const BelowDoor below;
  const c10::InferenceMode ordinary(false);  // others than this thread's may record with it
  const c10::AutoGradMode no_grad(false);
  return unmarked_alias(parameter).to(type);
}

/// Puts `node` behind `cast`: what comes back of that goes to `of`, which was cast.
void lead_back(Node& node, const at::Tensor& of, const at::Tensor& cast) {
  node.set_next_edges(torch::autograd::collect_next_edges(of));
  node.add_input_metadata(cast);
}

/// Whether a cast of `view` has its strides, and a cast of `parameter` all that `view` shows.
bool shows_part_of(const at::Tensor& view, const at::Tensor& parameter) {
  if (!view.has_storage() || !view.is_alias_of(parameter)) return false;
  if (view.scalar_type() != parameter.scalar_type() || view.numel() == 0) return false;
  if (!view.is_non_overlapping_and_dense() || !parameter.is_non_overlapping_and_dense()) {
    return false;
  }
  const int64_t start = view.storage_offset() - parameter.storage_offset();
  return start >= 0 && start + view.numel() <= parameter.numel();
}

/// Of a parameter that another pipeline stage holds.
at::Tensor shape_elsewhere(const at::Tensor& parameter, at::ScalarType type) {
  const BelowDoor below;
  const at::Tensor shape = unmarked_alias(parameter).to(type);
  at::Tensor marked = marked_copy(shape, parameter);
  marked.set_requires_grad(parameter.requires_grad());
  return marked;
}

}  // namespace

/// What a weight holds at one time: writes are counted, but those that give it other memory.
struct WeightCasts::Content {
  explicit Content(const at::Tensor& parameter)
      : writes(parameter.unsafeGetTensorImpl()->version_counter().current_version()),
        storage(parameter.storage().getWeakStorageImpl()),
        memory(parameter.storage().unsafeGetStorageImpl()),
        type(parameter.scalar_type()) {}
  bool operator==(const Content& other) const {
    return writes == other.writes && memory == other.memory && type == other.type;
  }

  uint32_t writes;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< so that its address is nobody else's
  const c10::StorageImpl* memory;
  at::ScalarType type;
};

struct WeightCasts::Entry {
  bool holds(const Content& now, at::ScalarType in) const {
    return !parameter.expired() && content == now && type == in;
  }

  Weak parameter;
  Content content;
  at::ScalarType type;
  at::Tensor copy = {};   ///< the numbers; undefined where the model keeps none
  WeakNumbers last = {};  ///< the same as long as a graph has them
  /// The node of the cast that is recorded last, as long as a graph has it.
  WeakNodePtr recorded{NodePtr()};
};

WeightCasts::WeightCasts(bool keeps_copies) : keeps_copies_(keeps_copies) {}
WeightCasts::~WeightCasts() = default;

WeightCasts::Entry& WeightCasts::entry_of(const at::Tensor& parameter, at::ScalarType type) {
  const Content content(parameter);
  auto found = entries_.find(parameter.unsafeGetTensorImpl());
  const bool written = written_by_others(parameter.unsafeGetTensorImpl());
  if (written || found == entries_.end() || !found->second.holds(content, type)) {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.parameter.expired(); });
    found = entries_
                .insert_or_assign(parameter.unsafeGetTensorImpl(),
                                  Entry{Weak(parameter.getIntrusivePtr()), content, type})
                .first;
  }
  return found->second;
}

at::Tensor WeightCasts::numbers_in(Entry& entry, const at::Tensor& parameter) {
  at::Tensor copy = entry.copy.defined() ? entry.copy : entry.last.lock();
  if (copy.defined()) return copy;
  copy = numbers_of(parameter, entry.type);
  entry.last = WeakNumbers(copy);
  if (keeps_copies_) entry.copy = copy;
  return copy;
}

bool WeightCasts::casts(const at::Tensor& parameter, at::ScalarType type, bool records) const {
  const Mark* const mark = mark_of(parameter);
  if (mark == nullptr || !mark->layout->here() || parameter.is_inference()) return false;
  if (!parameter.is_leaf() || parameter.scalar_type() == type) return false;
  return records || keeps_copies_;
}

at::Tensor WeightCasts::of(const at::Tensor& parameter, at::ScalarType type) {
  const bool records = c10::GradMode::is_enabled() && parameter.requires_grad();
  if (!casts(parameter, type, records)) return {};
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entry_of(parameter, type);
  const at::Tensor copy = numbers_in(entry, parameter);
  at::Tensor cast = alias_of(copy);
  if (!records) return marked_copy(cast, parameter);
  const std::shared_ptr<SplitBackward>& split = SplitBackward::current();
  NodePtr node = entry.recorded.lock();
  if (node && !static_cast<CastBack&>(*node).serves(split)) node = NodePtr();
  if (!node) {
    node = make_node<CastBack>(parameter.scalar_type(), split);
    lead_back(*node, value_of_marked(parameter, *mark_of(parameter)).local, cast);
    // What a backward pass computes again is of no forward's graph.
    const bool of_forward = torch::autograd::get_current_graph_task_id() == -1;
    if (of_forward) entry.recorded = WeakNodePtr(node);
  }
  // What is computed again has its own.
  if (!OperatorTap::Lifted::active()) static_cast<CastBack&>(*node).keep(copy);
  at::Tensor recorded = marked_copy(cast, parameter);
  torch::autograd::impl::set_gradient_edge(recorded, {node, 0});
  return recorded;
}

at::Tensor WeightCasts::of_view(const at::Tensor& parameter, const at::Tensor& view,
                                at::ScalarType type) {
  const bool records = c10::GradMode::is_enabled() && view.requires_grad();
  if (!casts(parameter, type, records) || !shows_part_of(view, parameter)) return {};
  at::Tensor cast;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const at::Tensor copy = numbers_in(entry_of(parameter, type), parameter);
    const BelowDoor below;
    const int64_t start = view.storage_offset() - parameter.storage_offset();
    cast = alias_of(copy.as_strided(view.sizes(), view.strides(), copy.storage_offset() + start));
  }
  if (!records) return cast;
  const NodePtr node = make_node<CastBack>(view.scalar_type(), nullptr);
  lead_back(*node, view, cast);
  torch::autograd::impl::set_gradient_edge(cast, {node, 0});
  return cast;
}

void WeightCasts::Others::look() {
  std::erase_if(counts, [&](auto& count) {
    const uint32_t now = count.first.current_version();
    written |= std::exchange(count.second, now) != now;
    return count.first.unique();  // nobody else is left who could write
  });
}

void WeightCasts::count_writes_of(const at::Tensor& data, const at::Tensor& parameter) {
  if (data.is_inference() || parameter.is_inference()) return;
  const c10::VariableVersion& writes = data.unsafeGetTensorImpl()->version_counter();
  const std::lock_guard<std::mutex> lock(mutex_);
  Others& others = others_[parameter.unsafeGetTensorImpl()];
  others.look();
  others.counts.emplace_back(writes, writes.current_version());
}

/// The mutex is held.
bool WeightCasts::written_by_others(const c10::TensorImpl* parameter) {
  const auto found = others_.find(parameter);
  if (found == others_.end()) return false;
  found->second.look();
  const bool written = found->second.written;
  if (found->second.counts.empty()) {
    others_.erase(found);
  } else {
    found->second.written = false;
  }
  return written;
}

void WeightCasts::set_type(const at::Tensor& parameter, at::ScalarType type) {
  const std::lock_guard<std::mutex> lock(mutex_);
  types_.insert_or_assign(parameter.unsafeGetTensorImpl(),
                          Type{Weak(parameter.getIntrusivePtr()), type});
}

std::vector<std::pair<at::Tensor, at::ScalarType>> WeightCasts::types() {
  std::vector<std::pair<at::Tensor, at::ScalarType>> all;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [_, type] : types_) {
    if (auto impl = type.parameter.lock()) all.emplace_back(at::Tensor(std::move(impl)), type.type);
  }
  return all;
}

at::Tensor WeightCasts::read(const at::Tensor& tensor) {
  std::optional<at::ScalarType> type;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = types_.find(tensor.unsafeGetTensorImpl());
    if (found != types_.end()) type = found->second.type;
  }
  if (!type) return tensor;
  const Mark* const mark = mark_of(tensor);
  if (mark != nullptr && !mark->layout->here()) return shape_elsewhere(tensor, *type);
  const at::Tensor copy = of(tensor, *type);
  return copy.defined() ? copy : tensor;
}

}  // namespace oslo
