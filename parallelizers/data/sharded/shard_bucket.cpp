#include "parallelizers/data/sharded/shard_bucket.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "parallelizers/data/exchange/gradient_exchange.h"
#include "parallelizers/data/sharded/bucket_tag.h"
#include "parallelizers/data/sharded/rule_name.h"
#include "parallelizers/data/sharded/written_counts.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/memory/saved_geometry.h"
#include "parallelizers/memory/saved_tensors.h"
#include "parallelizers/placement/carrier/local_of.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

/// Where the gradients of a bucket's whole weights arrive: what it hands on are this rank's parts
/// of their averages. As early as it can run, as LibTorch's accumulators do.
class AverageShards final : public Node {
 public:
  using Average = std::function<variable_list(variable_list gradients)>;
  explicit AverageShards(Average average)
      : Node(/*sequence_nr=*/UINT64_MAX), average_(std::move(average)) {}

  std::string name() const override { return "OsloAverageShards"; }
  variable_list apply(variable_list&& gradients) override { return average_(std::move(gradients)); }

 private:
  const Average average_;
};

at::Tensor alias_of(const at::Tensor& plain) {
  return alias_counted_by(plain, plain);
}

c10::weak_intrusive_ptr<c10::TensorImpl> weak(const at::Tensor& tensor) {
  return c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr());
}

}  // namespace

/// What is saved of a bucket's weights holds this one.
struct ShardBucket::SavedUses {
  std::weak_ptr<ShardBucket> bucket;

  explicit SavedUses(std::weak_ptr<ShardBucket> of) : bucket(std::move(of)) {}
  ~SavedUses() {
    const auto all = bucket.lock();
    if (all && torch::autograd::get_current_graph_task_id() != -1) all->used_in_backward();
  }
  SavedUses(const SavedUses&) = delete;
  SavedUses& operator=(const SavedUses&) = delete;
};

std::shared_ptr<void> ShardBucket::saved_use() {
  auto uses = saved_uses_.lock();
  if (!uses) saved_uses_ = uses = std::make_shared<SavedUses>(weak_from_this());
  return uses;
}

void ShardBucket::used_in_backward() {
  if (saved_uses_.expired()) all_->used_in_backward(*this);
}

size_t ShardBucket::add(const at::Tensor& shape, size_t place) {
  weights_.push_back({shape, place, std::nullopt, nullptr, nullptr, weak(shape)});
  return weights_.size() - 1;
}

void ShardBucket::lay_weight(size_t number, const at::Tensor& parameter, const LayoutPtr& layout,
                             LayoutPtr used) {
  let_go();
  node_ = WeakNodePtr(NodePtr());
  Weight& weight = weights_[number];
  weight.pieces.emplace(weight.shape, *layout);
  weight.layout = layout;
  weight.used = std::move(used);
  weight.parameter = weak(parameter);
}

std::vector<at::Tensor> ShardBucket::parts() const {
  std::vector<at::Tensor> parts;
  for (const Weight& weight : weights_) {
    auto impl = weight.parameter.lock();
    OSLO_CHECK(impl, "a weight of ", name_, ", of which data replicas keep parts, is gone");
    parts.emplace_back(std::move(impl));
  }
  return parts;
}

int64_t ShardBucket::whole_bytes() const {
  int64_t bytes = 0;
  for (const Weight& weight : weights_) {
    const auto part = weight.parameter.lock();
    if (part) bytes += weight.pieces->elements() * static_cast<int64_t>(part->dtype().itemsize());
  }
  return bytes;
}

void ShardBucket::cast_made(const at::Tensor& cast, const at::Tensor& of) {
  if (cast.is_alias_of(of)) return;
  const auto whole = std::find_if(wholes_.begin(), wholes_.end(),
                                  [&](const at::Tensor& each) { return of.is_alias_of(each); });
  if (whole == wholes_.end()) return;
  const auto number = static_cast<size_t>(whole - wholes_.begin());
  regained_.push_back(
      regain_memory(cast, [own = weak_from_this(), type = cast.scalar_type(), number,
                           from = geometry_of(of)](const at::Tensor& saved) {
        const auto bucket = own.lock();
        if (!bucket) return UnpackSavedTensor();
        return UnpackSavedTensor([bucket, use = bucket->saved_use(), type, number, from,
                                  versions = bucket->versions(), lies = geometry_of(saved)] {
          const c10::AutoGradMode no_grad(false);
          bucket->check_not_written(versions);
          bucket->all_->about_to_use();
          bucket->bring(bucket->parts());
          return lay(lies, lay(from, bucket->wholes_[number].storage()).to(type).storage());
        });
      }));
}

std::vector<uint32_t> ShardBucket::versions() const {
  std::vector<uint32_t> versions;
  for (const Weight& weight : weights_) versions.push_back(weight.version);
  return versions;
}

void ShardBucket::check_not_written(const std::vector<uint32_t>& versions) const {
  const std::vector<at::Tensor> now = parts();
  for (size_t i = 0; i < now.size(); ++i) {
    const uint32_t version = version_of(*now[i].unsafeGetTensorImpl());
    OSLO_CHECK(version == versions[i],
               "one of the variables needed for gradient computation has been modified by an "
               "inplace operation: weight ",
               mark_of(now[i])->name, " is at version ", version, ", it was used at version ",
               versions[i]);
  }
}

/// Of the graph that is being recorded. It is the graph's: a node that is kept here would keep the
/// parameters' accumulators, by which a graph is told that is still alive.
NodePtr ShardBucket::node_for(const std::vector<at::Tensor>& parts) {
  const bool known = node_type_ == wholes_[0].scalar_type() &&
                     std::equal(parts.begin(), parts.end(), weights_.begin(),
                                [](const at::Tensor& part, const Weight& weight) {
                                  return part.requires_grad() == weight.trained;
                                });
  NodePtr node = known ? node_.lock() : NodePtr();
  if (!node) node = make_node(parts);
  return node;
}

NodePtr ShardBucket::make_node(const std::vector<at::Tensor>& parts) {
  const NodePtr node =
      oslo::make_node<AverageShards>([own = weak_from_this()](variable_list gradients) {
        const auto bucket = own.lock();
        const size_t count = gradients.size();
        return bucket ? bucket->average(std::move(gradients)) : variable_list(count);
      });
  torch::autograd::edge_list edges;
  for (size_t i = 0; i < parts.size(); ++i) {
    node->add_input_metadata(wholes_[i]);
    weights_[i].trained = parts[i].requires_grad();
    if (weights_[i].trained) {
      keep_accumulator(parts[i], *mark_of(parts[i]));
      edges.push_back(torch::autograd::impl::gradient_edge(parts[i]));
    } else {
      edges.emplace_back();
    }
  }
  node->set_next_edges(std::move(edges));
  node_ = WeakNodePtr(node);
  node_type_ = wholes_[0].scalar_type();
  return node;
}

at::Tensor ShardBucket::whole(size_t number) {
  all_->about_to_use();
  const std::vector<at::Tensor> parts = this->parts();
  bring(parts);
  const at::Tensor& parameter = parts[number];
  at::Tensor whole = alias_of_whole(number, parameter);
  if (c10::GradMode::is_enabled() && parameter.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(whole,
                                             {node_for(parts), static_cast<uint32_t>(number)});
  }
  const LayoutPtr& used = weights_[number].used;
  return used ? marked_in(whole, parameter, used) : whole;
}

bool ShardBucket::take_gradients(const std::vector<at::Tensor>& /*parts*/,
                                 const std::vector<at::Tensor>& /*gradients*/) {
  return false;
}

bool ShardBucket::take_gradient(size_t /*number*/, const at::Tensor& /*gradient*/) {
  return false;
}

/// This rank's stretch of the replicas' average.
at::Tensor ShardBucket::average_of(const at::Tensor& joined, const JoinedShards& shards) const {
  const GradientExchange exchange(*replicas_, {}, kZeroRule);
  return exchange.start({joined, {}, shards.sizes()}, /*awaited=*/true).wait();
}

void ShardBucket::check_others_average_it(const at::Tensor& tag) const {
  OSLO_CHECK_AS(peer, bucket_tag::is_average_of(number_, tag), "rank ",
                replicas_->ranks()[replicas_->rank()], " of the world averages the gradients of ",
                name_, ", and others of ranks ", replicas_->ranks(),
                " those of another layer; data ranks that keep parts of the weights use the same "
                "layers in the same order");
}

/// A weight that this replica did not use counts as zeros; one that none did has no gradient: how
/// many did comes behind the parts, and behind which bucket it is.
std::vector<at::Tensor> ShardBucket::average(std::vector<at::Tensor> gradients) {
  OSLO_CHECK(!c10::GradMode::is_enabled(),
             "a backward pass with create_graph over weights that data replicas keep parts of "
             "(zero_optimization, stage 3): what is averaged over replicas has no graph; take "
             "stage 1, or torch::autograd::grad with respect to the inputs alone");
  const BelowDoor below;
  const RuleScope scope(kZeroRule);
  const std::vector<at::Tensor> own_parts = this->parts();
  if (take_gradients(own_parts, gradients)) {
    all_->used_in_backward(*this);
    return std::vector<at::Tensor>(gradients.size());
  }
  used_in_backward();  // whole weights go before what averages their gradients comes
  std::vector<size_t> trained;
  std::vector<const ShardPieces*> pieces;
  at::TensorOptions options;
  c10::ScalarType type = at::kFloat;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!weights_[i].trained) continue;
    trained.push_back(i);
    pieces.push_back(&*weights_[i].pieces);
    if (gradients[i].defined()) options = local_of(gradients[i]).options();
    type = gradient_type(own_parts[i]);
  }
  const int ranks = replicas_->size(), rank = replicas_->rank();
  const auto flags = static_cast<int64_t>(trained.size());
  JoinedShards shards(pieces, ranks, bucket_tag::kAveraged + flags);
  const at::Tensor joined = at::empty(shards.elements(), options.dtype(type));
  std::vector<float> beside = bucket_tag::digits(number_);
  for (const size_t i : trained) {
    beside.push_back(gradients[i].defined() ? 1 : 0);
    if (gradients[i].defined()) {
      shards.write(joined, local_of(gradients[i]).expand(weights_[i].pieces->sizes));
      gradients[i].reset();  // whole ones go while their averages come
    } else {
      shards.write_zeros(joined);
    }
  }
  const at::Tensor numbers = at::tensor(beside).to(joined.options());
  for (int replica = 0; replica < ranks; ++replica) shards.beside(joined, replica).copy_(numbers);
  at::Tensor own = average_of(joined, shards);
  if (all_->copies().are_seen(own_parts)) own = all_->copies().averaged(own);
  check_others_average_it(
      own.narrow(0, own.numel() - flags - bucket_tag::kAveraged, bucket_tag::kAveraged));
  const std::vector<bool> had = had_by_any(own, flags);
  std::vector<at::Tensor> parts(weights_.size());
  int64_t begin = 0;
  for (size_t n = 0; n < trained.size(); ++n) {
    const Weight& weight = weights_[trained[n]];
    const int64_t elements = weight.pieces->elements_on(rank);
    const at::Tensor part = own.narrow(0, begin, elements).view(weight.pieces->sizes_on(rank));
    begin += elements;
    if (had[n]) parts[trained[n]] = wrap_placed({alias_of(part), weight.layout});
  }
  all_->gradients_come();
  return parts;
}

at::Tensor ShardBucket::averaged(size_t number, const at::Tensor& gradient) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope(kZeroRule);
  const Weight& weight = weights_[number];
  const at::Tensor own = local_in(gradient, weight.used).expand(weight.pieces->sizes);
  if (take_gradient(number, own)) return {};
  JoinedShards shards({&*weight.pieces}, replicas_->size());
  const at::Tensor joined = own.new_empty(shards.elements());
  shards.write(joined, own);
  all_->gradients_come();
  return alias_of(average_of(joined, shards).view(weight.pieces->sizes_on(replicas_->rank())));
}

}  // namespace oslo
