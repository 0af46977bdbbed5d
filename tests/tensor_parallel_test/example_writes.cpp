// What the example's forward writes: initialize leaves the model as it was, or says that it cannot.
#include <gmock/gmock.h>

#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

enum class Writes { set_data, copy, data_copy, tensor_flag, every_time, buffer };

/// Scale and shift that the first batch decides, as in Glow's ActNorm; or a parameter that every
/// forward decides anew.
struct ScaledImpl : torch::nn::Module {
  explicit ScaledImpl(Writes how) : how(how) {
    up = register_module("up", torch::nn::Linear(4, 6));
    down = register_module("down", torch::nn::Linear(6, 4));
    shift = register_parameter("shift", torch::zeros({6}), how != Writes::every_time);
    if (how == Writes::buffer) seen = register_buffer("seen", torch::zeros({6}));
    if (how == Writes::tensor_flag) done = register_buffer("done", torch::zeros({}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = up(x);
    const bool first = how == Writes::every_time ||
                       (how == Writes::tensor_flag ? done.item<double>() == 0 : !initialized);
    if (first) {
      const torch::NoGradGuard no_grad;
      const auto mean = h.detach().mean(0);
      if (how == Writes::set_data) shift.set_data(-mean);
      if (how == Writes::data_copy) shift.data().copy_(-mean);
      if (how == Writes::buffer) seen.copy_(mean);
      if (how == Writes::copy || how == Writes::tensor_flag || how == Writes::every_time) {
        shift.copy_(-mean);
      }
      if (how == Writes::tensor_flag) done.fill_(1);
      initialized = true;
    }
    if (how == Writes::buffer) h = h - seen;
    return down(torch::tanh(h + shift));
  }
  Writes how;
  bool initialized = false;
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::Tensor shift, seen, done;
};
TORCH_MODULE(Scaled);

struct Before {
  std::vector<torch::Tensor> handles, values;
  std::vector<const void*> memory;

  explicit Before(const torch::nn::Module& model) {
    handles = model.parameters();
    for (const auto& buffer : model.buffers()) handles.push_back(buffer);
    for (const auto& tensor : handles) {
      values.push_back(tensor.detach().clone());
      memory.push_back(tensor.const_data_ptr());
    }
  }
  void expect_unchanged() const {
    for (size_t i = 0; i < handles.size(); ++i) {
      EXPECT_TRUE(torch::equal(handles[i], values[i])) << i;
      EXPECT_EQ(handles[i].const_data_ptr(), memory[i]) << i;
    }
  }
};

Scaled seeded_scaled(Writes how) {
  auto model = parity::make_seeded(9, [&] { return Scaled(how); });
  model->to(torch::kFloat64);
  return model;
}

torch::Tensor batch_of(int seed) {
  return parity::make_seeded(seed, [] { return torch::randn({5, 4}, torch::kFloat64); });
}

/// The example reads what cannot be read in a run on shapes where `by_force`; initialize then runs
/// it on one device.
std::function<void()> example_of(const Scaled& model, bool by_force) {
  return [model = model, by_force]() mutable {
    const auto y = model->forward(batch_of(1));
    if (by_force) {
      EXPECT_NE(y.const_data_ptr<double>(), nullptr);
    }
  };
}

TEST(ExampleWrites, InitializationByTheFirstBatchIsRefusedByName) {
  for (const Writes how : {Writes::set_data, Writes::copy, Writes::data_copy, Writes::buffer}) {
    for (const bool by_force : {false, true}) {
      SCOPED_TRACE(c10::str(static_cast<int>(how), by_force));
      std::vector<std::string> errors(2);
      run_as_threads(2, [&](World world) {
        const Scaled model = seeded_scaled(how);
        const Before before(*model);
        auto options = test::in(world);
        options.example_inputs = example_of(model, by_force);
        try {
          initialize(model, Config::parse(parity::tensor_parallel(2)), options);
        } catch (const Error& error) {
          errors[world.rank()] = error.what();
        }
        before.expect_unchanged();
        test::expect_untouched(model);
      });
      EXPECT_THAT(errors, Each(AllOf(HasSubstr(how == Writes::buffer ? "seen" : "shift"),
                                     HasSubstr("writes"), HasSubstr("before initialize"))));
    }
  }
}

/// Trains on both; `prepare` runs on both before initialize.
void expect_trains_alike(Writes how, bool by_force,
                         const std::function<void(Scaled&)>& prepare = {}) {
  SCOPED_TRACE(c10::str(static_cast<int>(how), by_force));
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    Scaled plain = seeded_scaled(how), model = seeded_scaled(how);
    if (prepare) prepare(plain), prepare(model);
    const Before before(*model);
    auto options = test::in(world);
    options.example_inputs = [&] {
      example_of(model, by_force)();
      model->zero_grad();
    };
    initialize(model, Config::parse(parity::tensor_parallel(2)), options).check();
    for (size_t i = 0; i < before.handles.size(); ++i) {
      EXPECT_TRUE(torch::equal(full_tensor(before.handles[i]), before.values[i])) << i;
    }
    for (int step = 0; step < 3; ++step) {
      for (Scaled each : {plain, model}) {
        torch::optim::SGD optimizer(each->parameters(), 0.1);
        optimizer.zero_grad();
        each->forward(batch_of(20 + step)).pow(2).mean().backward();
        optimizer.step();
      }
      parity::expect_weights(*model, *plain);
    }
  });
}

TEST(ExampleWrites, AfterOneRealForwardItTrains) {
  for (const Writes how : {Writes::set_data, Writes::copy, Writes::data_copy, Writes::buffer}) {
    for (const bool by_force : {false, true}) {
      expect_trains_alike(how, by_force, [](Scaled& model) { model->forward(batch_of(2)); });
    }
  }
}

TEST(ExampleWrites, WhatEveryForwardWritesOrATensorRemembersIsNoLoss) {
  for (const bool by_force : {false, true}) {
    expect_trains_alike(Writes::every_time, by_force);
    expect_trains_alike(Writes::tensor_flag, by_force);
  }
}

}  // namespace
}  // namespace oslo
