#include "parallelizers/data/exchange/pass_exchange.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <string>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/data/exchange/reducer_hook.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

constexpr char kRule[] = "ddp";

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

/// In place, so that whoever holds the gradient goes on holding it.
void unmark_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined() || mark_of(gradient) == nullptr) return;
  gradient.unsafeGetTensorImpl()->shallow_copy_from(unmarked_alias(gradient).getIntrusivePtr());
}

}  // namespace

PassExchange::PassExchange(std::shared_ptr<Group> group, std::vector<NamedTensor> parameters,
                           const DDPOptions& options)
    : group_(std::move(group)),
      trained_(std::move(parameters)),
      options_(options),
      exchange_(*group_, tensors_of(trained_), kRule),
      reduced_(std::make_shared<StandIns>(tensors_of(trained_))),
      came_(trained_.size(), 0) {
  hand_out_plain_gradients();
  make_reducer();
  for (size_t i = 0; i < trained_.size(); ++i) {
    watch_.add(trained_[i].tensor, [this, i] { gradient_came(i); });
  }
}

PassExchange::~PassExchange() = default;

/// A gradient that an earlier backward left is marked, and the reducer copies it into its buckets,
/// which are ordinary tensors. This hook is added before the reducer's and so runs before it;
/// `settle_gradients` marks the gradient again.
void PassExchange::hand_out_plain_gradients() {
  for (size_t i = 0; i < trained_.size(); ++i) {
    const at::Tensor& parameter = trained_[i].tensor;
    if (reduced_->any()) {
      // With the first gradient of a pass, whosever it is, the reducer looks at what is unused, of
      // which the program may have let go since the forward.
      watch_.add(parameter,
                 [this, i] { end_awaited_ ? reduced_->hand_out(i) : reduced_->hand_out(); });
    }
    if (!reduced_->stands_in(i) && mark_of(parameter) != nullptr) {
      watch_.add(parameter, [&parameter] { unmark_gradient(parameter); });
    }
  }
}

void PassExchange::make_reducer() {
  const std::vector<at::Tensor>& tensors = reduced_->tensors();
  std::unordered_map<size_t, std::string> names;
  for (size_t i = 0; i < trained_.size(); ++i) names[i] = trained_[i].name;
  const auto cap = static_cast<int64_t>(options_.bucket_cap_mb() * 1024 * 1024);
  const int64_t first_cap = std::min<int64_t>(cap, c10d::kDefaultFirstBucketBytes);
  reducer_ = std::make_shared<c10d::Reducer>(
      tensors, gradient_buckets(tensors, first_cap, cap), group_->process_group(),
      /*expect_sparse_gradients=*/std::vector<bool>(tensors.size(), false), cap,
      options_.find_unused_parameters(), options_.gradient_as_bucket_view(), std::move(names),
      first_cap, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  reducer_->register_comm_hook(
      std::make_unique<ReducerHook>(group_, exchange_, reduced_, [this] { last_bucket_left(); }));
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  if (options_.static_graph()) reducer_->set_static_graph();
}

/// A reducer that a backward pass has left half way, as it threw, refuses every later one. What had
/// set out ends by itself; its averages are lost, as the pass's gradients are.
void PassExchange::begin_anew() {
  logger_.reset();
  reducer_.reset();
  make_reducer();
  std::fill(came_.begin(), came_.end(), 0);
  complete_ = true;
  counted_uses_ = false;
}

void PassExchange::gradient_came(size_t index) {
  came_[index] = 1;
  if (end_awaited_.exchange(true)) return;
  // The engine lets go of its callbacks where the pass throws: what has come is views of buckets,
  // and LibTorch's zero_grad refuses those.
  const std::shared_ptr<PassExchange> pass(this, [](PassExchange* exchange) {
    if (exchange->end_awaited_) exchange->settle_gradients();
  });
  torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->backward_ended(); });
}

void PassExchange::last_bucket_left() {
  complete_ = true;
  const bool sends_map =
      options_.static_graph() ? first_of_static() : options_.find_unused_parameters();
  if (!sends_map) return;
  // The reducer itself exchanges which parameters were used, one int each.
  const RuleScope scope(kRule);
  const auto elements =
      static_cast<int64_t>(2 * (group_->size() - 1) * trained_.size() / group_->size());
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(int));
  group_->ledger().record("all_reduce", elements, bytes, /*moved=*/bytes);
}

void PassExchange::backward_ended() {
  end_awaited_ = false;
  if (first_of_static()) {
    reducer_->delay_all_reduce();
    if (!complete_) last_bucket_left();  // of several it calls none the last
    counted_uses_ = true;
  }
  // Callbacks run in the order in which they were queued: after the reducer's, which waits for the
  // buckets and writes the gradients.
  torch::autograd::Engine::get_default_engine().queue_callback([this] { settle_gradients(); });
}

/// The reducer makes gradients of its own: views of its buckets, and those of parameters that only
/// other ranks used.
void PassExchange::settle_gradients() {
  for (size_t i = 0; i < trained_.size(); ++i) {
    const NamedTensor& parameter = trained_[i];
    reduced_->take_back(i);
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    // `zero_grad` detaches gradients in place, which autograd forbids for a view.
    if (gradient.defined() && gradient.is_view()) gradient = unmarked_alias(gradient);
    if (gradient.defined() && mark_of(parameter.tensor) != nullptr) {
      mark_gradient(gradient, parameter.tensor);
    }
  }
}

void PassExchange::check_finished() const {
  const auto arrived = std::count(came_.begin(), came_.end(), 1);
  if (arrived == 0 || complete_ || first_of_static()) return;
  std::string missing;
  for (size_t i = 0; i < trained_.size(); ++i) {
    if (!came_[i]) missing += (missing.empty() ? "" : ", ") + trained_[i].name;
  }
  fail("the last backward gave no gradient to ", missing, " (", trained_.size() - arrived, " of ",
       trained_.size(), " parameters), so the gradients in their buckets were not averaged; ",
       options_.static_graph()
           ? "with static_graph every step must use the parameters that the first one used"
       : options_.find_unused_parameters()
           ? "let every output of forward take part in the loss"
           : "let every parameter take part in the loss, freeze those that do not, or set "
             "DDPOptions().find_unused_parameters(true)");
}

void PassExchange::forward_begins(bool exchanges) {
  const RuleScope scope(kRule);
  if (end_awaited_.exchange(false)) begin_anew();  // the last backward never came to its end
  check_finished();
  if (exchanges || first_of_static()) reducer_->prepare_for_forward();
  reduced_->hand_out();  // the program may have let go of gradients
  if (reducer_->rebuild_buckets()) settle_gradients();
}

bool PassExchange::forward_ends(bool exchanges, const std::vector<at::Tensor>& outputs) {
  if (!exchanges && !first_of_static()) return false;
  std::vector<at::Tensor> local;
  for (const at::Tensor& output : outputs) local.push_back(local_tensor(output));
  reducer_->prepare_for_backward(local);
  std::fill(came_.begin(), came_.end(), 0);
  complete_ = false;
  return true;
}

std::vector<int64_t> PassExchange::bucket_sizes() const {
  std::vector<int64_t> sizes;
  for (const c10d::GradBucket& bucket : reducer_->get_grad_buckets(false)) {
    sizes.push_back(static_cast<int64_t>(bucket.getBuffer().nbytes()));
  }
  return sizes;
}

}  // namespace oslo
