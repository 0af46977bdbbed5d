#include "parallelizers/data/data_parallel_core.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "mpu/base/error.h"
#include "mpu/transport/counted_process_group.h"
#include "parallelizers/data/gradient_hook.h"
#include "parallelizers/data/replicas.h"
#include "parallelizers/data/sparse_gradients.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

/// A parameter, and what the reducer took for granted about it.
struct ReducedParameter {
  std::string name;
  at::Tensor tensor;
  bool trained;
  bool marked;
  c10::ScalarType dtype;
  c10::Device device;
};

namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

std::string describe(const ReducedParameter& parameter) {
  const LayoutPtr layout = oslo::layout(parameter.tensor);
  return c10::str(parameter.name, " ", parameter.tensor.sizes(), " ", parameter.dtype,
                  parameter.trained ? "" : " frozen", layout ? " cut " + layout->to_string() : "");
}

std::vector<ReducedParameter> parameters_of(const ModelView& model) {
  std::vector<ReducedParameter> parameters;
  for (auto& [name, tensor, computed] : model.in_use()) {
    if (computed || !is_here(tensor)) continue;  // never gets a gradient
    const bool marked = mark_of(tensor) != nullptr;
    parameters.push_back({std::move(name), tensor, tensor.requires_grad(), marked,
                          tensor.scalar_type(), tensor.device()});
  }
  return parameters;
}

/// Buckets of trained parameters, last parameter first: about the order in which their gradients
/// come.
std::vector<std::vector<size_t>> assign_buckets(const std::vector<at::Tensor>& trained,
                                                const std::vector<size_t>& limits) {
  const std::vector<at::Tensor> reversed(trained.rbegin(), trained.rend());
  std::vector<int64_t> indices(trained.size());
  std::iota(indices.rbegin(), indices.rend(), 0);
  return std::get<0>(c10d::compute_bucket_assignment_by_size(
      reversed, limits, std::vector<bool>(trained.size(), false), indices));
}

/// In place, so that whoever holds the gradient goes on holding it.
void unmark_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined() || mark_of(gradient) == nullptr) return;
  gradient.unsafeGetTensorImpl()->shallow_copy_from(unmarked_alias(gradient).getIntrusivePtr());
}

std::shared_ptr<Group> wrap_group(c10::intrusive_ptr<c10d::ProcessGroup> group) {
  OSLO_CHECK(group != nullptr, "DistributedDataParallel was given no group");
  std::vector<int> ranks(group->getSize());
  std::iota(ranks.begin(), ranks.end(), 0);
  // A group that was not made here does not say which ranks of the world it has.
  const auto* counted = dynamic_cast<const CountedProcessGroup*>(group.get());
  if (counted != nullptr) ranks = counted->ranks();
  const int rank = group->getRank();
  return std::make_shared<Group>("data", std::move(ranks), rank, std::move(group));
}

}  // namespace

struct DataParallelCore::State {
  State(std::shared_ptr<torch::nn::Module> module, Group& group, const DDPOptions& options)
      : module(std::move(module)), group(group), options(options) {}
  ~State() {
    for (const auto& [hook, node] : watches) node->del_post_hook(hook);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void hand_out_plain_gradients();
  void make_reducer(const std::shared_ptr<Group>& shared_group);
  void watch_gradient(const at::Tensor& parameter, std::function<void()> then);
  void watch_gradients();
  void broadcast_buffers();
  void check_parameters() const;
  void check_finished() const;
  void gradient_came(size_t index);
  void last_bucket_left();
  void backward_ended();
  void settle_gradients();

  /// In a static graph the first backward counts how often each gradient comes, and exchanges.
  bool first_of_static() const { return options.static_graph() && !counted_uses; }

  std::shared_ptr<torch::nn::Module> module;
  Group& group;
  DDPOptions options;
  std::vector<ReducedParameter> parameters;
  std::vector<ReducedParameter> trained;
  std::shared_ptr<c10d::Reducer> reducer;
  /// The reducer tells it when other parameters than before are unused, and takes for granted that
  /// it is there.
  std::shared_ptr<c10d::Logger> logger;
  std::vector<std::pair<uintptr_t, std::shared_ptr<Node>>> watches;

  std::vector<char> came;  ///< which trained parameters got a gradient since the last forward
  std::atomic<bool> complete{true};  ///< all buckets of the last exchange have set out
  std::atomic<bool> end_awaited{false};
  bool counted_uses = false;
  bool buffers_due = true;
};

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module,
                                   std::shared_ptr<Group> group, const DDPOptions& options)
    : group_(std::move(group)) {
  OSLO_CHECK(module != nullptr, "DistributedDataParallel was given an empty module");
  OSLO_CHECK(group_ != nullptr, "DistributedDataParallel was given no group");
  OSLO_CHECK(options.bucket_cap_mb() > 0, "bucket_cap_mb is ", options.bucket_cap_mb(),
             "; it must be above 0");
  if (group_->size() == 1) return;
  const RuleScope scope("ddp");
  auto state = std::make_unique<State>(std::move(module), *group_, options);
  const ModelView model(state->module);
  state->parameters = parameters_of(model);
  std::vector<std::string> lines;
  std::vector<at::Tensor> tensors;
  for (const ReducedParameter& parameter : state->parameters) {
    if (parameter.trained) state->trained.push_back(parameter);
    lines.push_back("parameter " + describe(parameter));
    tensors.push_back(parameter.tensor);
  }
  for (const auto& [path, buffer] : model.buffers()) {
    if (!is_here(buffer)) continue;
    lines.push_back(c10::str("buffer ", path, " ", buffer.sizes(), " ", buffer.scalar_type()));
    tensors.push_back(buffer);
  }
  check_replicas_agree(*group_, "the model", lines);
  refuse_sparse_gradients(model);
  OSLO_CHECK(!state->trained.empty(),
             "no parameter of the model requires a gradient, so there is nothing for "
             "DistributedDataParallel to average; use the model itself");
  broadcast_from_first(*group_, tensors);
  state->hand_out_plain_gradients();
  state->make_reducer(group_);
  state->watch_gradients();
  state_ = std::move(state);
}

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module,
                                   c10::intrusive_ptr<c10d::ProcessGroup> group,
                                   const DDPOptions& options)
    : DataParallelCore(std::move(module), wrap_group(std::move(group)), options) {}

DataParallelCore::~DataParallelCore() = default;

void DataParallelCore::State::make_reducer(const std::shared_ptr<Group>& shared_group) {
  std::vector<at::Tensor> tensors;
  std::unordered_map<size_t, std::string> names;
  for (size_t i = 0; i < trained.size(); ++i) {
    tensors.push_back(trained[i].tensor);
    names[i] = trained[i].name;
  }
  const auto cap = static_cast<int64_t>(options.bucket_cap_mb() * 1024 * 1024);
  const int64_t first_cap = std::min<int64_t>(cap, c10d::kDefaultFirstBucketBytes);
  auto buckets =
      assign_buckets(tensors, {static_cast<size_t>(first_cap), static_cast<size_t>(cap)});
  reducer = std::make_shared<c10d::Reducer>(
      tensors, std::move(buckets), group.process_group(),
      /*expect_sparse_gradients=*/std::vector<bool>(tensors.size(), false), cap,
      options.find_unused_parameters(), options.gradient_as_bucket_view(), std::move(names),
      first_cap, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  reducer->register_comm_hook(
      std::make_unique<GradientHook>(shared_group, [this] { last_bucket_left(); }));
  logger = std::make_shared<c10d::Logger>(reducer);
  reducer->set_logger(logger);
  if (options.static_graph()) reducer->set_static_graph();
}

void DataParallelCore::State::watch_gradient(const at::Tensor& parameter,
                                             std::function<void()> then) {
  using torch::autograd::utils::LambdaPostHook;
  auto node = torch::autograd::impl::grad_accumulator(parameter);
  const uintptr_t hook = node->add_post_hook(std::make_unique<LambdaPostHook>(
      [then = std::move(then)](const variable_list& outputs, const variable_list&) {
        then();
        return outputs;
      }));
  watches.emplace_back(hook, std::move(node));
}

/// A gradient that an earlier backward left is marked, and the reducer copies it into its buckets,
/// which are ordinary tensors. Hooks run in the order in which they were added: this one comes
/// before the reducer's, and `settle_gradients` marks the gradient again.
void DataParallelCore::State::hand_out_plain_gradients() {
  for (const ReducedParameter& parameter : trained) {
    if (!parameter.marked) continue;
    watch_gradient(parameter.tensor, [&parameter] { unmark_gradient(parameter.tensor); });
  }
}

void DataParallelCore::State::watch_gradients() {
  came.assign(trained.size(), 0);
  for (size_t i = 0; i < trained.size(); ++i) {
    watch_gradient(trained[i].tensor, [this, i] { gradient_came(i); });
  }
}

void DataParallelCore::State::gradient_came(size_t index) {
  came[index] = 1;
  if (end_awaited.exchange(true)) return;
  torch::autograd::Engine::get_default_engine().queue_callback([this] { backward_ended(); });
}

void DataParallelCore::State::last_bucket_left() {
  complete = true;
  const bool sends_map =
      options.static_graph() ? first_of_static() : options.find_unused_parameters();
  if (!sends_map) return;
  // The reducer itself exchanges which parameters were used, one int each.
  const auto elements =
      static_cast<int64_t>(2 * (group.size() - 1) * trained.size() / group.size());
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(int));
  group.ledger().record("all_reduce", elements, bytes, /*moved=*/bytes);
}

void DataParallelCore::State::backward_ended() {
  end_awaited = false;
  if (first_of_static()) {
    reducer->delay_all_reduce();
    counted_uses = true;
  }
  // Callbacks run in the order in which they were queued: after the reducer's, which waits for the
  // buckets and writes the gradients.
  torch::autograd::Engine::get_default_engine().queue_callback([this] { settle_gradients(); });
}

/// The reducer makes gradients of its own: views of its buckets, and those of parameters that only
/// other ranks used.
void DataParallelCore::State::settle_gradients() {
  for (const ReducedParameter& parameter : trained) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined()) continue;
    // `zero_grad` detaches gradients in place, which autograd forbids for a view.
    if (gradient.is_view()) gradient = unmarked_alias(gradient);
    if (parameter.marked) mark_gradient(gradient, parameter.tensor);
  }
}

void DataParallelCore::State::broadcast_buffers() {
  std::vector<at::Tensor> buffers = module->buffers();
  std::erase_if(buffers, [](const at::Tensor& buffer) { return !is_here(buffer); });
  if (!buffers.empty()) broadcast_from_first(group, buffers);
}

void DataParallelCore::State::check_parameters() const {
  constexpr const char* again = "; make DistributedDataParallel again, after such changes";
  for (const ReducedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    const LayoutPtr layout = oslo::layout(tensor);
    OSLO_CHECK(!layout || !layout->context()->in_step(),
               "DistributedDataParallel in a step of a PipelineSchedule, which averages gradients "
               "over data replicas itself, once a step; call the model there");
    const bool marked = mark_of(tensor) != nullptr;
    OSLO_CHECK(marked == parameter.marked, "parameter ", parameter.name,
               marked ? " was cut over ranks after DistributedDataParallel was made"
                      : " has lost the mark that says which part of it this rank holds",
               again);
    OSLO_CHECK(tensor.requires_grad() == parameter.trained, "parameter ", parameter.name, " was ",
               parameter.trained ? "frozen" : "unfrozen", " after DistributedDataParallel was made",
               again);
    OSLO_CHECK(tensor.scalar_type() == parameter.dtype && tensor.device() == parameter.device,
               "parameter ", parameter.name, " became ", tensor.scalar_type(), " on ",
               tensor.device(), " after DistributedDataParallel was made for ", parameter.dtype,
               " on ", parameter.device, again);
  }
}

void DataParallelCore::State::check_finished() const {
  const auto arrived = std::count(came.begin(), came.end(), 1);
  if (arrived == 0 || complete || first_of_static()) return;
  std::string missing;
  for (size_t i = 0; i < trained.size(); ++i) {
    if (!came[i]) missing += (missing.empty() ? "" : ", ") + trained[i].name;
  }
  fail("the last backward gave no gradient to ", missing, " (", trained.size() - arrived, " of ",
       trained.size(), " parameters), so the gradients in their buckets were not averaged; ",
       options.static_graph()
           ? "with static_graph every step must use the parameters that the first one used"
       : options.find_unused_parameters()
           ? "let every output of forward take part in the loss"
           : "let every parameter take part in the loss, freeze those that do not, or set "
             "DDPOptions().find_unused_parameters(true)");
}

void DataParallelCore::check_divided() {
  divides_ = divides_ || !synchronizes_;
  if (divides_ || !c10::GradMode::is_enabled()) return;
  const auto* group = dynamic_cast<const CountedProcessGroup*>(group_->process_group().get());
  OSLO_CHECK(group == nullptr || group->undivided_refused().empty(), group->undivided_refused());
}

bool DataParallelCore::finds_unused() const {
  const DDPOptions& options = state_->options;
  return options.find_unused_parameters() && !options.static_graph() && c10::GradMode::is_enabled();
}

void DataParallelCore::before_forward() {
  State& state = *state_;
  const RuleScope scope("ddp");
  state.check_parameters();
  state.end_awaited = false;  // a backward that threw never came to its end
  if (c10::GradMode::is_enabled()) {
    state.check_finished();
    if (synchronizes_ || state.first_of_static()) state.reducer->prepare_for_forward();
    if (state.reducer->rebuild_buckets()) state.settle_gradients();
  }
  if (state.buffers_due && state.options.broadcast_buffers()) state.broadcast_buffers();
  state.buffers_due = false;
}

void DataParallelCore::after_forward(const std::vector<at::Tensor>& outputs) {
  State& state = *state_;
  if (!c10::GradMode::is_enabled() || !(synchronizes_ || state.first_of_static())) return;
  std::vector<at::Tensor> local;
  for (const at::Tensor& output : outputs) local.push_back(local_tensor(output));
  state.reducer->prepare_for_backward(local);
  std::fill(state.came.begin(), state.came.end(), 0);
  state.complete = false;
  state.buffers_due = true;
}

std::vector<int64_t> DataParallelCore::bucket_sizes() const {
  std::vector<int64_t> sizes;
  if (!active()) return sizes;
  for (const c10d::GradBucket& bucket : state_->reducer->get_grad_buckets(false)) {
    sizes.push_back(static_cast<int64_t>(bucket.getBuffer().nbytes()));
  }
  return sizes;
}

}  // namespace oslo
