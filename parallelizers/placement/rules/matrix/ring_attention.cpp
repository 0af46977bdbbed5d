#include "parallelizers/placement/rules/matrix/ring_attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <optional>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/group/messages.h"
#include "parallelizers/placement/layout/purpose.h"
#include "parallelizers/placement/rules/matrix/attention_block.h"
#include "parallelizers/placement/rules/matrix/position_runs.h"

namespace oslo {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kKeysTag = 0, kGradientsTag = 1;
constexpr const char* kRing = "ring";

/// Some of this rank's queries beside some of another rank's keys, and what they see of them.
struct RingBlock {
  size_t number;  ///< of the run of queries
  PositionRun queries, keys;
  BlockView view;

  at::Tensor of_queries(const at::Tensor& tensor, int64_t dim = -2) const {
    return tensor.narrow(dim, queries.start, queries.length);
  }
  at::Tensor of_keys(const at::Tensor& tensor) const {
    return tensor.narrow(-2, keys.start, keys.length);
  }
};

std::vector<PositionRun> query_runs(const Ring& ring) {
  if (ring.causal) return runs_of(ring.queries);
  return {{0, ring.queries.numel()}};
}

/// What queries at `own` see of keys at `keys`, both rising, under a causal mask.
BlockView causal_view(const at::Tensor& own, const at::Tensor& keys) {
  BlockView view;
  if (own[0].item<int64_t>() >= keys[-1].item<int64_t>()) return view;
  view.causal = own.equal(keys);
  if (view.causal) return view;
  view.mask = own.unsqueeze(1).ge(keys);
  view.nothing = !view.mask.any().item<bool>();
  return view;
}

/// What this rank's queries see something of among the keys of `rank`.
std::vector<RingBlock> blocks_of(const Ring& ring, int rank) {
  const at::Tensor& keys = ring.keys[rank];
  if (ring.queries.numel() == 0 || keys.numel() == 0) return {};
  const std::vector<PositionRun> runs = query_runs(ring);
  if (!ring.causal) {
    RingBlock all{0, runs[0], {0, keys.numel()}, {}};
    if (ring.mask.defined()) {
      const bool one = ring.mask.size(-1) == 1;
      all.view.mask = one ? ring.mask : ring.mask.index_select(-1, keys.to(ring.mask.device()));
    }
    return {all};
  }
  std::vector<RingBlock> blocks;
  for (size_t i = 0; i < runs.size(); ++i) {
    const at::Tensor own = ring.queries.narrow(0, runs[i].start, runs[i].length);
    for (const PositionRun& run : runs_of(keys)) {
      BlockView view = causal_view(own, keys.narrow(0, run.start, run.length));
      if (!view.nothing) blocks.push_back({i, runs[i], run, std::move(view)});
    }
  }
  return blocks;
}

/// Of queries that see nothing.
BlockAttention nothing_seen(const at::Tensor& query, const at::Tensor& value) {
  auto shape = query.sizes().vec();
  shape.back() = value.size(-1);
  const auto sums = query.options().dtype(at::toOpMathType(query.scalar_type()));
  return {at::zeros(shape, sums), at::full(query.sizes().slice(0, query.dim() - 1),
                                           -std::numeric_limits<double>::infinity(), sums)};
}

/// The shape that `own`, a part of this rank's, has on `rank`.
at::Tensor shape_on(const at::Tensor& own, const Ring& ring, int rank, at::ScalarType type) {
  auto shape = own.sizes().vec();
  shape[shape.size() - 2] = ring.keys[rank].numel();
  return at::empty({}, own.options().dtype(type)).expand(shape);
}

/// Keys and values on their way round.
class Round {
 public:
  Round(const Ring& ring, at::Tensor key, at::Tensor value)
      : ring_(ring),
        size_(ring.group->size()),
        next_((ring.group->rank() + 1) % size_),
        previous_((ring.group->rank() + size_ - 1) % size_),
        own_{key.contiguous(), value.contiguous()},
        here_(own_) {}

  /// Whose keys are here.
  int owner() const { return (ring_.group->rank() + size_ - step_) % size_; }
  const at::Tensor& key() const { return here_[0]; }
  const at::Tensor& value() const { return here_[1]; }
  bool last() const { return step_ == size_ - 1; }

  /// Sends on what is here, and asks for the next.
  void start() {
    if (last()) return;
    sent_.emplace(ring_.group->start_send(here_, next_, kKeysTag));
    const int owner = (ring_.group->rank() + size_ - step_ - 1) % size_;
    coming_.emplace(ring_.group->start_receive(
        previous_, kKeysTag,
        {shape_on(own_[0], ring_, owner, type(0)), shape_on(own_[1], ring_, owner, type(1))}));
  }
  /// Goes on to the next; false after the last.
  bool finish() {
    if (last()) return false;
    std::vector<at::Tensor> came = coming_->wait();
    sent_->wait();
    here_ = std::move(came);
    ++step_;
    return true;
  }

  /// What belongs to the keys that are here goes the same way, one step behind.
  void pass_on(std::vector<at::Tensor> gradients) {
    ring_.group->send(gradients, next_, kGradientsTag);
  }
  std::vector<at::Tensor> gradients_of(int owner, at::ScalarType type) {
    return ring_.group->receive(
        previous_, kGradientsTag,
        {shape_on(own_[0], ring_, owner, type), shape_on(own_[1], ring_, owner, type)});
  }

 private:
  at::ScalarType type(size_t i) const { return own_[i].scalar_type(); }

  const Ring& ring_;
  const int size_, next_, previous_;
  const std::vector<at::Tensor> own_;
  std::vector<at::Tensor> here_;
  int step_ = 0;
  std::optional<PendingSend> sent_;
  std::optional<PendingMessage> coming_;
};

/// Travels with the graph.
struct RingHolder : torch::CustomClassHolder {
  explicit RingHolder(std::shared_ptr<const Ring> held)
      : ring(std::move(held)), asker(AskerScope::current()) {}
  std::shared_ptr<const Ring> ring;
  Asker asker;  ///< of the forward
};

BlockAttention all_blocks(const Ring& ring, const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value) {
  const std::vector<PositionRun> runs = query_runs(ring);
  std::vector<BlockAttention> of_runs(runs.size());
  Round round(ring, key, value);
  do {
    round.start();
    for (const RingBlock& block : blocks_of(ring, round.owner())) {
      add_block(of_runs[block.number],
                attend(block.of_queries(query), block.of_keys(round.key()),
                       block.of_keys(round.value()), block.view, ring.scale));
    }
  } while (round.finish());
  std::vector<at::Tensor> outputs, log_sums;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!of_runs[i].output.defined()) {
      of_runs[i] = nothing_seen(query.narrow(-2, runs[i].start, runs[i].length), value);
    }
    outputs.push_back(of_runs[i].output);
    log_sums.push_back(of_runs[i].log_sum);
  }
  if (runs.empty()) return nothing_seen(query, value);
  return {at::cat(outputs, -2).to(query.scalar_type()), at::cat(log_sums, -1)};
}

BlockGradients all_gradients(const Ring& ring, const at::Tensor& gradient, const at::Tensor& query,
                             const at::Tensor& key, const at::Tensor& value,
                             const BlockAttention& all) {
  const at::ScalarType type = at::toOpMathType(key.scalar_type());
  BlockGradients sums{at::zeros(query.sizes(), query.options().dtype(type)), {}, {}};
  Round round(ring, key, value);
  bool first = true, more = true;
  while (more) {
    round.start();
    const int owner = round.owner();
    const std::vector<RingBlock> blocks = blocks_of(ring, owner);
    std::vector<BlockGradients> added;
    for (const RingBlock& block : blocks) {
      added.push_back(
          attend_backward(block.of_queries(gradient), block.of_queries(query),
                          block.of_keys(round.key()), block.of_keys(round.value()),
                          {block.of_queries(all.output), block.of_queries(all.log_sum, -1)},
                          block.view, ring.scale));
      block.of_queries(sums.query) += added.back().query;
    }
    std::vector<at::Tensor> travelling =
        first
            ? std::vector<at::Tensor>{at::zeros(round.key().sizes(), key.options().dtype(type)),
                                      at::zeros(round.value().sizes(), value.options().dtype(type))}
            : round.gradients_of(owner, type);
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].of_keys(travelling[0]) += added[i].key;
      blocks[i].of_keys(travelling[1]) += added[i].value;
    }
    round.pass_on(std::move(travelling));
    first = false;
    more = round.finish();
  }
  const std::vector<at::Tensor> home = round.gradients_of(ring.group->rank(), type);
  return {sums.query.to(query.scalar_type()), home[0].to(key.scalar_type()),
          home[1].to(value.scalar_type())};
}

class RingFunction : public torch::autograd::Function<RingFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const c10::intrusive_ptr<RingHolder>& holder) {
    BlockAttention all = all_blocks(*holder->ring, query, key, value);
    context->save_for_backward({query, key, value, all.output, all.log_sum});
    context->saved_data[kRing] = c10::IValue::make_capsule(holder);
    return all.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    OSLO_CHECK(!c10::GradMode::is_enabled(),
               "ring attention is differentiable once, and create_graph asks for its gradient's "
               "gradient; set 'context_attention' to gather");
    const auto holder =
        c10::static_intrusive_pointer_cast<RingHolder>(context->saved_data[kRing].toCapsule());
    const AskerScope as_in_forward(holder->asker);
    const AskerScope of_gradient = AskerScope::of_gradient();
    const variable_list saved = context->get_saved_variables();
    const BlockGradients found = all_gradients(*holder->ring, gradients[0].contiguous(), saved[0],
                                               saved[1], saved[2], {saved[3], saved[4]});
    return {found.query, found.key, found.value, at::Tensor()};
  }
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::shared_ptr<const Ring>& ring) {
  const AskerScope asker = AskerScope::with_purpose(purpose::kRing);
  return RingFunction::apply(query, key, value, c10::make_intrusive<RingHolder>(ring));
}

}  // namespace oslo
