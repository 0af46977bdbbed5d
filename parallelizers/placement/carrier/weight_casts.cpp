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

/// Casts what comes back to the parameter's type. Until then it has the numbers for those who use
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

  /// What it had last; undefined where nobody keeps that any more.
  at::Tensor copy() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (copy_.defined()) return copy_;
    const auto memory = memory_.lock();
    if (!memory) return {};
    const BelowDoor below;
    return at::empty({0}, like_).set_(c10::Storage(memory), 0, sizes_, strides_);
  }

  /// `keeps`: until the pass; else as long as the graph's products do.
  void set(const at::Tensor& copy, bool keeps) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (over_) return;
    like_ = copy.options();
    sizes_ = copy.sizes().vec();
    strides_ = copy.strides().vec();
    memory_ = copy.storage().getWeakStorageImpl();
    if (keeps) copy_ = copy;
  }

 private:
  const at::ScalarType type_;
  std::mutex mutex_;
  bool over_ = false;
  at::Tensor copy_;
  c10::weak_intrusive_ptr<c10::StorageImpl> memory_{c10::intrusive_ptr<c10::StorageImpl>()};
  at::TensorOptions like_;
  std::vector<int64_t> sizes_, strides_;
  const bool has_halves_;
  const std::weak_ptr<SplitBackward> split_;
};

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl>;

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
  at::Tensor copy = {};  ///< the numbers; undefined where nobody keeps them
  /// The node of the cast that is recorded last, as long as a graph has it.
  WeakNodePtr recorded{NodePtr()};
};

WeightCasts::WeightCasts(bool keeps_copies) : keeps_copies_(keeps_copies) {}
WeightCasts::~WeightCasts() = default;

at::Tensor WeightCasts::of(const at::Tensor& parameter, at::ScalarType type) {
  const Mark* const mark = mark_of(parameter);
  const bool here = mark != nullptr && mark->layout->here() && !parameter.is_inference();
  if (!here || !parameter.is_leaf() || parameter.scalar_type() == type) return {};
  const bool records = c10::GradMode::is_enabled() && parameter.requires_grad();
  if (!records && !keeps_copies_) return {};
  const Content content(parameter);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(parameter.unsafeGetTensorImpl());
  const bool written = written_by_others(parameter.unsafeGetTensorImpl());
  if (written || found == entries_.end() || !found->second.holds(content, type)) {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.parameter.expired(); });
    found = entries_
                .insert_or_assign(parameter.unsafeGetTensorImpl(),
                                  Entry{Weak(parameter.getIntrusivePtr()), content, type})
                .first;
  }
  Entry& entry = found->second;
  const std::shared_ptr<SplitBackward>& split = SplitBackward::current();
  NodePtr node = records ? entry.recorded.lock() : NodePtr();
  if (node && !static_cast<CastBack&>(*node).serves(split)) node = NodePtr();
  at::Tensor copy = node ? static_cast<CastBack&>(*node).copy() : at::Tensor();
  if (!copy.defined()) copy = entry.copy;
  if (!copy.defined()) copy = numbers_of(parameter, type);
  if (keeps_copies_) entry.copy = copy;
  at::Tensor cast = alias_of(copy);
  if (!records) return marked_copy(cast, parameter);
  if (!node) {
    const at::Tensor inside = value_of_marked(parameter, *mark).local;
    node = make_node<CastBack>(parameter.scalar_type(), split);
    node->set_next_edges(torch::autograd::collect_next_edges(inside));
    node->add_input_metadata(cast);
    // What a backward pass computes again is of no forward's graph.
    const bool of_forward = torch::autograd::get_current_graph_task_id() == -1;
    if (of_forward) entry.recorded = WeakNodePtr(node);
  }
  // What is computed again has its own.
  static_cast<CastBack&>(*node).set(copy, !OperatorTap::Lifted::active());
  at::Tensor recorded = marked_copy(cast, parameter);
  torch::autograd::impl::set_gradient_edge(recorded, {node, 0});
  return recorded;
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
