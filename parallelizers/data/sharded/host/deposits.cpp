#include "parallelizers/data/sharded/host/deposits.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/launch/malloc_settings.h"
#include "parallelizers/data/sharded/host/pages.h"
#include "parallelizers/libtorch/graph_pass.h"
#include "parallelizers/libtorch/keys.h"

namespace oslo {

/// What ends together: a backward pass, which the engine keeps until its end and lets go of where
/// it throws, or a step.
class Deposits::Pass {
 public:
  /// Returns when nobody reads any more what this rank left in the last one.
  static std::shared_ptr<Pass> begin(const std::shared_ptr<State>& state, bool is_step) {
    const HostRanks& ranks = *state->ranks;
    const uint64_t before = ranks.own().ended.load();
    ranks.await_others([&](int other) { return ranks.word(other).taken.load() >= before; },
                       "take its part of the gradients of the last backward pass");
    state->tidy();
    auto pass = std::make_shared<Pass>(state, before + 1, is_step);
    state->pass = pass;
    return pass;
  }

  Pass(std::shared_ptr<State> state, uint64_t number, bool is_step)
      : state_(std::move(state)), number_(number), is_step_(is_step) {}
  ~Pass() {
    if (done_) return;
    HostWord& own = state_->ranks->own();
    own.thrown.store(number_);
    own.taken.store(number_);
    own.ended.store(number_);
    state_->ranks->tell();
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  uint64_t number() const { return number_; }
  bool is_step() const { return is_step_; }
  const char* what() const { return is_step_ ? "step" : "backward pass"; }
  bool has_said() const { return said_; }
  void says_that_it_ends() {
    said_ = true;
    state_->ranks->own().ended.store(number_);
    state_->ranks->tell();
  }
  void ends() {
    done_ = true;
    state_->add_up(*this);
  }

 private:
  const std::shared_ptr<State> state_;
  const uint64_t number_;
  const bool is_step_;
  bool said_ = false, done_ = false;
};

Deposits::Step::Step(Deposits& deposits) : pass_(Pass::begin(deposits.state_, /*is_step=*/true)) {}

void Deposits::Step::finish() {
  run_as_pass([pass = pass_] {
    pass->says_that_it_ends();
    pass->ends();
  });
}

Deposits::Deposits(std::shared_ptr<HostRanks> ranks, std::vector<Place> places, size_t begin,
                   size_t bytes)
    : state_(std::make_shared<State>()) {
  state_->ranks = std::move(ranks);
  state_->divisor = at::native::wrapped_scalar_tensor(state_->ranks->size());
  state_->places = std::move(places);
  state_->begin = begin;
  state_->bytes = bytes;
  size_t here = 0;
  for (const Place& place : state_->places) here += place.weight.here ? place.bytes : 0;
  state_->keeps = environment_keeps_freed(here);
}

size_t Deposits::words_for(int ranks, size_t weights) {
  return whole_pages(static_cast<size_t>(ranks) * weights * 2 * sizeof(std::atomic<uint64_t>));
}

size_t Deposits::State::memory_of(int rank) const {
  return begin + static_cast<size_t>(rank) * bytes;
}

/// The number of the last pass in which `rank` left a gradient of `weight`, from 1.
std::atomic<uint64_t>& Deposits::State::left_in(size_t weight, int rank) const {
  auto* const all = reinterpret_cast<std::atomic<uint64_t>*>(ranks->data());
  return all[static_cast<size_t>(rank) * places.size() + weight];
}

/// Several gradients that add up do so in the type of their average, as in `.grad`.
at::ScalarType Deposits::State::type_of(size_t weight, const Pass& in) const {
  const Owner::Types types = places[weight].owner->types();
  return in.is_step() ? types.average : types.travels_in;
}

at::Tensor Deposits::State::deposit(size_t weight, int rank, at::ScalarType type) const {
  const Place& place = places[weight];
  return at::from_blob(ranks->data() + memory_of(rank) + place.offset, place.weight.sizes,
                       place.weight.strides, at::TensorOptions(type));
}

/// This rank's part of it.
at::Tensor Deposits::State::part_of_deposit(size_t weight, int rank, at::ScalarType type) const {
  const Place& place = places[weight];
  const HostWeight& lies = place.weight;
  if (!lies.is_cut()) return deposit(weight, rank, type);
  const size_t before = static_cast<size_t>(lies.elements_before()) * c10::elementSize(type);
  return at::from_blob(ranks->data() + memory_of(rank) + place.offset + before,
                       lies.sizes_of_part(), lies.strides, at::TensorOptions(type));
}

std::shared_ptr<Deposits::Pass> Deposits::pass() {
  std::shared_ptr<Pass> pass = state_->pass.lock();
  if (pass) {
    OSLO_CHECK(!pass->has_said(),
               "a hook that is called at the end of a backward pass runs another one, through "
               "weights that ranks share on this host and whose gradients this pass has not "
               "averaged yet; run it behind backward()");
    return pass;
  }
  pass = Pass::begin(state_, /*is_step=*/false);
  // Of several models in one pass, which ranks may come to in other orders, each says that it has
  // ended before any waits for the others.
  at_end_of_pass(EndOfPass::own, [pass] { pass->says_that_it_ends(); });
  at_end_of_pass(EndOfPass::sums, [pass] { pass->ends(); });
  return pass;
}

void Deposits::leave(size_t weight, const at::Tensor& gradient) {
  State& state = *state_;
  const HostRanks& ranks = *state.ranks;
  const std::shared_ptr<Pass> pass = this->pass();
  Place& place = state.places[weight];
  std::atomic<uint64_t>& left = state.left_in(weight, ranks.rank());
  const bool again = left.load() == pass->number();
  const at::ScalarType type = state.type_of(weight, *pass);
  OSLO_CHECK(c10::elementSize(type) * static_cast<size_t>(place.weight.elements()) <= place.bytes,
             "gradients of a weight that ranks share on this host came to be ", type,
             ", which there is no room for; set \"copies_per_host\" to 0");
  if (!again && !place.there) {
    const size_t at = state.memory_of(ranks.rank()) + place.offset;
    const size_t from = at / kPage * kPage;
    ranks.commit(from, at + place.bytes - from);
    place.there = state.keeps;
  }
  const at::Tensor there = state.deposit(weight, ranks.rank(), type);
  // Divided before the sum over ranks, as LibTorch's DDP does: a half type would overflow. Those of
  // a step are when it has ended, so that they add up as under DDP.
  if (pass->is_step() && again) {
    there.add_(gradient);
  } else if (pass->is_step()) {
    there.copy_(gradient);
  } else if (again) {
    there.add_(at::div(gradient.to(type), ranks.size()));
  } else if (gradient.scalar_type() == type) {
    at::Tensor into = there;
    at::div_out(into, gradient, state.divisor);
  } else {
    there.copy_(gradient).div_(ranks.size());
  }
  state.left_any = true;
  left.store(pass->number());
}

/// Of this rank's part; undefined where nobody has left one.
at::Tensor Deposits::State::average(size_t weight, const Pass& over) const {
  at::Tensor sum;
  bool is_new = false;  // memory of its own
  for (int rank = 0; rank < ranks->size(); ++rank) {
    if (left_in(weight, rank).load() != over.number()) continue;
    at::Tensor part = part_of_deposit(weight, rank, type_of(weight, over));
    if (over.is_step()) part = part / ranks->size();
    part = part.to(places[weight].owner->types().average);
    if (!sum.defined()) {
      sum = part;
      is_new = over.is_step();
    } else if (is_new) {
      sum.add_(part);
    } else {
      sum = sum + part;
      is_new = true;
    }
  }
  return sum.defined() && !is_new ? sum.clone() : sum;
}

void Deposits::State::add_up(const Pass& over) {
  const c10::AutoGradMode no_grad(false);
  const uint64_t number = over.number();
  HostWord& own = ranks->own();
  pass.reset();
  ranks->await_others([&](int other) { return ranks->word(other).ended.load() >= number; },
                      over.is_step() ? "end its step" : "end its backward pass");
  for (int other = 0; other < ranks->size(); ++other) {
    if (ranks->word(other).thrown.load() != number) continue;
    own.taken.store(number);
    ranks->tell();
    ranks->fail_of(c10::str("the ", over.what(), " of ", ranks->name_of(other),
                            " threw, and this rank's did not: there is no average of their "
                            "gradients"));
  }
  std::vector<at::Tensor> averages;
  for (size_t weight = 0; weight < places.size(); ++weight) {
    const BelowDoor below;
    averages.push_back(average(weight, over));
  }
  own.taken.store(number);
  ranks->tell();
  tidy();
  for (size_t weight = 0; weight < places.size(); ++weight) {
    if (averages[weight].defined()) places[weight].owner->take(averages[weight]);
  }
}

void Deposits::State::tidy() {
  if (!left_any || keeps) return;
  const uint64_t number = ranks->own().taken.load();
  for (int other = 0; other < ranks->size(); ++other) {
    if (ranks->word(other).taken.load() < number) return;
  }
  ranks->release(memory_of(ranks->rank()), bytes);
  left_any = false;
}

void Deposits::tidy() {
  if (state_->pass.expired()) state_->tidy();
}

}  // namespace oslo
