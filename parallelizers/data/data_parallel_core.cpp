#include "parallelizers/data/data_parallel_core.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/transport/counted_process_group.h"
#include "parallelizers/data/counted_gradients.h"
#include "parallelizers/data/exchange/pass_exchange.h"
#include "parallelizers/data/exchange/shared_pass_exchange.h"
#include "parallelizers/data/replicas.h"
#include "parallelizers/data/sharded/shard_parameters.h"
#include "parallelizers/data/sparse_gradients.h"
#include "parallelizers/data/zero/gradient_share.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

/// A parameter, and what its exchange took for granted about it.
struct ReducedParameter {
  std::string name;
  at::Tensor tensor;
  bool trained;
  bool marked;
  bool sharded;  ///< replicas keep parts of it, whose gradients they average by themselves
  c10::ScalarType dtype;
  c10::Device device;
};

namespace {

std::string describe(const ReducedParameter& parameter) {
  const LayoutPtr layout = oslo::layout(parameter.tensor);
  const std::vector<int64_t> sizes =
      parameter.sharded ? whole_sizes(parameter.tensor) : parameter.tensor.sizes().vec();
  return c10::str(parameter.name, " ", c10::IntArrayRef(sizes), " ", parameter.dtype,
                  parameter.trained ? "" : " frozen", layout ? " cut " + layout->to_string() : "");
}

std::vector<ReducedParameter> parameters_of(const ModelView& model) {
  std::vector<ReducedParameter> parameters;
  for (auto& [name, tensor, computed] : model.in_use()) {
    if (computed || !is_here(tensor)) continue;  // never gets a gradient
    const bool marked = mark_of(tensor) != nullptr;
    parameters.push_back({std::move(name), tensor, tensor.requires_grad(), marked,
                          is_sharded(tensor), tensor.scalar_type(), tensor.device()});
  }
  return parameters;
}

bool shares_out(const std::vector<NamedTensor>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const NamedTensor& each) {
    return gradient_share(each.tensor) != nullptr;
  });
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
  State(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<Group> group,
        const DDPOptions& options)
      : module(std::move(module)), group(std::move(group)), options(options) {}

  void broadcast_buffers();
  void check_parameters() const;
  void choose_exchange();
  bool has_accumulators_of_exchange() const;

  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<Group> group;
  DDPOptions options;
  std::vector<ReducedParameter> parameters;
  std::vector<NamedTensor> trained;  ///< of those that are not sharded
  std::optional<PassExchange> exchange = std::nullopt;
  std::optional<SharedPassExchange> shared = std::nullopt;  ///< in its place
  std::vector<NodePtr> accumulators = {};  ///< of `trained`, at which the exchange waits
  std::vector<std::shared_ptr<ShardBuckets>> shards = {};
  bool buffers_due = true;
};

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module,
                                   std::shared_ptr<Group> group, const DDPOptions& options)
    : module_(std::move(module)), group_(std::move(group)) {
  OSLO_CHECK(module_ != nullptr, "DistributedDataParallel was given an empty module");
  OSLO_CHECK(group_ != nullptr, "DistributedDataParallel was given no group");
  OSLO_CHECK(options.bucket_cap_mb() > 0, "bucket_cap_mb is ", options.bucket_cap_mb(),
             "; it must be above 0");
  if (group_->size() == 1) return;
  const RuleScope scope("ddp");
  auto state = std::make_unique<State>(module_, group_, options);
  const ModelView model(module_);
  state->parameters = parameters_of(model);
  std::vector<std::string> lines;
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> all;
  bool trains = false;
  for (const ReducedParameter& parameter : state->parameters) {
    lines.push_back("parameter " + describe(parameter));
    all.push_back(parameter.tensor);
    trains = trains || parameter.trained;
    if (parameter.sharded) continue;
    if (parameter.trained) state->trained.push_back({parameter.name, parameter.tensor});
    tensors.push_back(parameter.tensor);
  }
  for (const auto& [path, buffer] : model.buffers()) {
    if (!is_here(buffer)) continue;
    lines.push_back(c10::str("buffer ", path, " ", buffer.sizes(), " ", buffer.scalar_type()));
    tensors.push_back(buffer);
  }
  check_replicas_agree(*group_, "the model", lines);
  refuse_sparse_gradients(model);
  OSLO_CHECK(trains,
             "no parameter of the model requires a gradient, so there is nothing for "
             "DistributedDataParallel to average; use the model itself");
  broadcast_from_first(*group_, tensors);
  state->shards = buckets_of(all);
  state->choose_exchange();
  state_ = std::move(state);
}

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module,
                                   c10::intrusive_ptr<c10d::ProcessGroup> group,
                                   const DDPOptions& options)
    : DataParallelCore(std::move(module), wrap_group(std::move(group)), options) {}

DataParallelCore::~DataParallelCore() = default;

void DataParallelCore::State::broadcast_buffers() {
  std::vector<at::Tensor> buffers = module->buffers();
  std::erase_if(buffers, [](const at::Tensor& buffer) { return !is_here(buffer); });
  if (!buffers.empty()) broadcast_from_first(*group, buffers);
}

/// A `ZeroOptimizer` may be made before or after this.
void DataParallelCore::State::choose_exchange() {
  if (trained.empty()) return;
  const bool fits = shared ? shared->fits() : exchange && !shares_out(trained);
  if (fits && has_accumulators_of_exchange()) return;
  exchange.reset();
  shared.reset();
  if (shares_out(trained)) {
    std::vector<std::string> lines;
    for (const NamedTensor& each : trained) {
      const GradientSharePtr share = gradient_share(each.tensor);
      lines.push_back(each.name + (share ? " " + share->layout->to_string() : " whole"));
    }
    check_replicas_agree(*group, "how ZeroOptimizer shares gradients out", lines);
    shared.emplace(group, trained, options);
  } else {
    exchange.emplace(group, trained, options);
  }
  accumulators.clear();
  for (const NamedTensor& each : trained) {
    accumulators.push_back(torch::autograd::impl::try_get_grad_accumulator(each.tensor));
  }
}

/// LibTorch gives a parameter another one when it gets data of another type, and back: by `to`, or
/// where an archive is loaded into the model.
bool DataParallelCore::State::has_accumulators_of_exchange() const {
  return std::equal(trained.begin(), trained.end(), accumulators.begin(), accumulators.end(),
                    [](const NamedTensor& each, const NodePtr& node) {
                      return torch::autograd::impl::try_get_grad_accumulator(each.tensor) == node;
                    });
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

void DataParallelCore::check_divided() {
  divides_ = divides_ || !synchronizes_;
  if (divides_ || !c10::GradMode::is_enabled()) return;
  const auto* group = dynamic_cast<const CountedProcessGroup*>(group_->process_group().get());
  OSLO_CHECK(group == nullptr || group->undivided_refused().empty(), group->undivided_refused());
}

bool DataParallelCore::finds_unused() const {
  const DDPOptions& options = state_->options;
  return state_->exchange && options.find_unused_parameters() && !options.static_graph() &&
         c10::GradMode::is_enabled();
}

void DataParallelCore::before_forward() {
  State& state = *state_;
  const RuleScope scope("ddp");
  state.check_parameters();
  if (c10::GradMode::is_enabled()) {
    state.choose_exchange();
    if (state.shared) {
      state.shared->forward_begins();
    } else if (state.exchange) {
      state.exchange->forward_begins(synchronizes_);
    }
  }
  for (const auto& shards : state.shards) shards->forward_begins();
  if (state.buffers_due && state.options.broadcast_buffers()) state.broadcast_buffers();
  state.buffers_due = false;
}

void DataParallelCore::after_forward(const std::vector<at::Tensor>& outputs) {
  for (const auto& shards : state_->shards) shards->forward_ended();
  if (!c10::GradMode::is_enabled()) return;
  if (state_->shared) state_->shared->forward_ends(synchronizes_);
  exchanges_ =
      state_->exchange ? state_->exchange->forward_ends(synchronizes_, outputs) : synchronizes_;
  state_->buffers_due |= exchanges_;
  for (const auto& shards : state_->shards) shards->copies().synchronize(exchanges_);
}

const std::shared_ptr<CountedGradients>& DataParallelCore::counted_gradients() {
  if (!counted_) {
    std::vector<at::Tensor> trained;
    for (const ReducedParameter& parameter : parameters_of(ModelView(module_))) {
      if (parameter.trained) trained.push_back(parameter.tensor);
    }
    counted_ = std::make_shared<CountedGradients>(std::move(trained), group_->size());
  }
  return counted_;
}

std::vector<int64_t> DataParallelCore::bucket_sizes() const {
  if (!active()) return {};
  if (state_->shared) return state_->shared->bucket_sizes();
  return state_->exchange ? state_->exchange->bucket_sizes() : std::vector<int64_t>();
}

}  // namespace oslo
