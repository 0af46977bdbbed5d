#include "parallelizers/data/exchange/shared_pass_exchange.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/data/exchange/gradient_exchange.h"
#include "parallelizers/data/zero/gradient_share.h"
#include "parallelizers/libtorch/gradient_type.h"

namespace oslo {
namespace {

/// Buckets under way at a time.
constexpr size_t kUnderWay = 2;

}  // namespace

struct SharedPassExchange::State : std::enable_shared_from_this<State> {
  class Pass;

  State(std::shared_ptr<Group> over, std::vector<NamedTensor> parameters,
        const DDPOptions& options);

  void came(size_t parameter);
  void pass_begins();
  void start_next(bool awaited = false);
  void finish_until(size_t left_under_way);
  void finish_pass();
  void abandon_pass();

  std::shared_ptr<Group> group;
  std::vector<NamedTensor> trained;
  DDPOptions options;
  std::vector<GradientSharePtr> shares;
  std::vector<std::vector<size_t>> numbers;  ///< of each bucket's parameters
  std::vector<BucketExchange> buckets;
  std::vector<size_t> bucket_of;

  std::mutex mutex;
  bool exchanges = false;
  std::vector<char> came_since_forward;
  // Of the present pass:
  std::weak_ptr<Pass> pass;
  std::vector<char> came_now;
  std::vector<size_t> missing;
  size_t started = 0, finished = 0;  ///< of the buckets, in their order
  bool late = false;                 ///< a gradient came behind its bucket
};

/// The engine keeps it until the end of a pass, and lets go of it where the pass throws.
class SharedPassExchange::State::Pass {
 public:
  explicit Pass(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~Pass() {
    if (!done_) state_->abandon_pass();
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  void ends() {
    state_->finish_pass();
    done_ = true;
  }

 private:
  std::shared_ptr<State> state_;
  bool done_ = false;
};

SharedPassExchange::State::State(std::shared_ptr<Group> over, std::vector<NamedTensor> parameters,
                                 const DDPOptions& options)
    : group(std::move(over)),
      trained(std::move(parameters)),
      options(options),
      bucket_of(trained.size()),
      came_since_forward(trained.size(), 1) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : trained) {
    tensors.push_back(parameter.tensor);
    shares.push_back(gradient_share(parameter.tensor));
  }
  const GradientExchange exchange(*group, tensors, "ddp");
  const auto cap = static_cast<int64_t>(options.bucket_cap_mb() * 1024 * 1024);
  numbers = gradient_buckets(tensors, std::min<int64_t>(cap, c10d::kDefaultFirstBucketBytes), cap);
  for (size_t b = 0; b < numbers.size(); ++b) {
    std::vector<at::Tensor> together;
    for (const size_t number : numbers[b]) {
      together.push_back(tensors[number]);
      bucket_of[number] = b;
    }
    buckets.emplace_back(exchange, std::move(together), options.find_unused_parameters());
  }
}

void SharedPassExchange::State::pass_begins() {
  const auto begun = std::make_shared<Pass>(shared_from_this());
  pass = begun;
  came_now.assign(trained.size(), 0);
  missing.clear();
  for (const auto& each : numbers) missing.push_back(each.size());
  started = finished = 0;
  late = false;
  torch::autograd::Engine::get_default_engine().queue_callback([begun] { begun->ends(); });
}

void SharedPassExchange::State::came(size_t parameter) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!exchanges) return;
  came_since_forward[parameter] = 1;
  if (pass.expired()) pass_begins();
  const size_t bucket = bucket_of[parameter];
  if (std::exchange(came_now[parameter], 1) != 0) {
    late |= bucket < started;
    return;
  }
  --missing[bucket];
  while (started < buckets.size() && missing[started] == 0) start_next();
}

void SharedPassExchange::State::start_next(bool awaited) {
  finish_until(kUnderWay - 1);
  buckets[started++].start(awaited);
}

void SharedPassExchange::State::finish_until(size_t left_under_way) {
  while (started - finished > left_under_way) buckets[finished++].finish();
}

void SharedPassExchange::State::finish_pass() {
  const std::lock_guard<std::mutex> lock(mutex);
  for (const bool again : {false, true}) {
    if (again && !late) break;
    if (again) started = finished = 0;
    while (started < buckets.size()) start_next(/*awaited=*/started + 1 == buckets.size());
    finish_until(0);
  }
  pass.reset();
}

void SharedPassExchange::State::abandon_pass() {
  const std::lock_guard<std::mutex> lock(mutex);
  came_since_forward.assign(trained.size(), 1);
  while (finished < started) {
    try {
      buckets[finished++].finish();
    } catch (const std::exception&) {  // what the pass threw is on its way
    }
  }
}

SharedPassExchange::SharedPassExchange(std::shared_ptr<Group> group,
                                       std::vector<NamedTensor> parameters,
                                       const DDPOptions& options)
    : state_(std::make_shared<State>(std::move(group), std::move(parameters), options)) {
  for (size_t i = 0; i < state_->trained.size(); ++i) {
    watch_.add(state_->trained[i].tensor, [state = state_, i] { state->came(i); });
  }
}

SharedPassExchange::~SharedPassExchange() = default;

void SharedPassExchange::forward_begins() {
  const State& state = *state_;
  if (state.options.find_unused_parameters()) return;
  const auto arrived =
      std::count(state.came_since_forward.begin(), state.came_since_forward.end(), 1);
  const auto all = static_cast<int64_t>(state.trained.size());
  if (arrived == 0 || arrived == all) return;
  std::string without;
  for (size_t i = 0; i < state.trained.size(); ++i) {
    if (state.came_since_forward[i] == 0) {
      without += (without.empty() ? "" : ", ") + state.trained[i].name;
    }
  }
  fail("the backward passes behind the last forward gave no gradient to ", without, " (",
       all - arrived, " of ", all,
       " parameters), of which other ranks may have one; let every parameter take part in the "
       "loss, freeze those that do not, or set DDPOptions().find_unused_parameters(true)");
}

void SharedPassExchange::forward_ends(bool exchanges) {
  state_->came_since_forward.assign(state_->trained.size(), exchanges ? 0 : 1);
  state_->exchanges = exchanges;
}

std::vector<int64_t> SharedPassExchange::bucket_sizes() const {
  std::vector<int64_t> sizes;
  for (const BucketExchange& bucket : state_->buckets) {
    int64_t bytes = 0;
    for (const at::Tensor& parameter : bucket.parameters()) {
      bytes += parameter.numel() * static_cast<int64_t>(c10::elementSize(gradient_type(parameter)));
    }
    sizes.push_back(bytes);
  }
  return sizes;
}

bool SharedPassExchange::fits() const {
  for (size_t i = 0; i < state_->trained.size(); ++i) {
    if (gradient_share(state_->trained[i].tensor) != state_->shares[i]) return false;
  }
  return true;
}

}  // namespace oslo
