// What authors write around their computations (moves to a tensor's device, factories with its
// options, numbers minus parameters) must not keep the example from being run on shapes: the plan
// is that of the same model without it.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <sstream>

#include "parallelizers/plan/layers/structural_plan.h"
#include "parallelizers/plan/search/automatic_plan.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kHidden = 24, kInner = 96;

struct HabitsImpl : torch::nn::Module {
  using Habit = std::function<Tensor(const Tensor&, HabitsImpl&)>;

  explicit HabitsImpl(Habit habit) : habit_(std::move(habit)) {
    up = register_module("up", torch::nn::Linear(kHidden, kInner));
    down = register_module("down", torch::nn::Linear(kInner, kHidden));
    mix = register_parameter("mix", torch::rand({kInner}));
    scale = register_buffer("scale", torch::rand({kInner}));
    kept = torch::rand({kInner});
  }
  Tensor forward(const Tensor& x) { return down(torch::gelu(habit_(up(x), *this))); }

  torch::nn::Linear up{nullptr}, down{nullptr};
  Tensor mix, scale, kept;

 private:
  Habit habit_;
};
TORCH_MODULE(Habits);

struct Case {
  const char* name;
  HabitsImpl::Habit habit, plain;
};

const HabitsImpl::Habit kScaled = [](const Tensor& h, HabitsImpl& m) { return h * m.scale; };
const HabitsImpl::Habit kMixed = [](const Tensor& h, HabitsImpl& m) { return h * m.mix; };
const HabitsImpl::Habit kNothing = [](const Tensor& h, HabitsImpl&) { return h; };

/// Every node of a graph of 10 takes the next one's values.
const HabitsImpl::Habit kNeighbours = [](const Tensor& h, HabitsImpl&) {
  return torch::eye(10).roll(1, 0).mm(h.flatten(0, 1)).view({2, 5, kInner});
};

std::vector<Case> cases() {
  return {
      {"a sparse matrix of neighbours",
       [](const Tensor& h, HabitsImpl&) {
         const Tensor next = torch::eye(10).roll(1, 0).to_sparse();
         return torch::mm(next, h.flatten(0, 1)).view({2, 5, kInner});
       },
       kNeighbours},
      {"buffer to the activation's device",
       [](const Tensor& h, HabitsImpl& m) { return h * m.scale.to(h.device()); }, kScaled},
      {"buffer to the activation's options",
       [](const Tensor& h, HabitsImpl& m) { return h * m.scale.to(h.options()); }, kScaled},
      {"buffer to the weight's options",
       [](const Tensor& h, HabitsImpl& m) { return h * m.scale.to(m.up->weight.options()); },
       kScaled},
      {"buffer to device and dtype",
       [](const Tensor& h, HabitsImpl& m) {
         return h * m.scale.to(h.device(), h.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
       },
       kScaled},
      {"buffer to the CPU", [](const Tensor& h, HabitsImpl& m) { return h * m.scale.cpu(); },
       kScaled},
      {"buffer like the activation",
       [](const Tensor& h, HabitsImpl& m) { return h * m.scale.to(h).type_as(h); }, kScaled},
      {"activation to the CPU", [](const Tensor& h, HabitsImpl&) { return h.cpu(); }, kNothing},
      {"activation to the buffer's device",
       [](const Tensor& h, HabitsImpl& m) { return h.to(m.scale.device()).to(m.scale.options()); },
       kNothing},
      {"parameter to the activation's device",
       [](const Tensor& h, HabitsImpl& m) { return h * m.mix.to(h.device()); }, kMixed},
      {"arange on the activation's device",
       [](const Tensor& h, HabitsImpl& m) {
         return h * (torch::arange(kInner, h.device()) + m.kept);
       },
       kScaled},
      {"arange on the weight's device",
       [](const Tensor& h, HabitsImpl& m) {
         return h * (torch::arange(kInner, m.up->weight.device()) + m.kept);
       },
       kScaled},
      {"zeros with a buffer's options",
       [](const Tensor& h, HabitsImpl& m) {
         auto zeros = torch::zeros({kInner}, m.scale.options());
         zeros.add_(m.kept);
         return h * zeros;
       },
       kScaled},
      {"zeros with the weight's options",
       [](const Tensor& h, HabitsImpl& m) {
         return h * (torch::zeros({kInner}, m.up->weight.options().requires_grad(false)) + m.kept);
       },
       kScaled},
      {"devices compared",
       [](const Tensor& h, HabitsImpl& m) {
         TORCH_CHECK(h.device() == m.up->weight.device() && m.scale.device() == h.device());
         TORCH_CHECK(m.mix.is_cpu() && !m.mix.is_meta() && h.is_cpu());
         return h;
       },
       kNothing},
      {"one minus a parameter", [](const Tensor& h, HabitsImpl& m) { return h * (1.0 - m.mix); },
       kMixed},
      {"one over a parameter", [](const Tensor& h, HabitsImpl& m) { return h * (2 / m.mix); },
       kMixed},
      {"added to zeros like a parameter",
       [](const Tensor& h, HabitsImpl& m) { return h * torch::zeros_like(m.mix).add_(m.mix); },
       kMixed},
      {"ones like a parameter, less it",
       [](const Tensor& h, HabitsImpl& m) {
         return h * torch::ones_like(m.mix).sub_(m.mix).exp_();
       },
       kMixed},
      {"a copy of a parameter, written",
       [](const Tensor& h, HabitsImpl& m) { return h * m.mix.clone().mul_(2); }, kMixed},
      {"a copy of a buffer",
       [](const Tensor& h, HabitsImpl& m) {
         return h * m.scale.detach().clone().mul_(2).contiguous();
       },
       kScaled},
      {"set_data of a buffer",
       [](const Tensor& h, HabitsImpl& m) {
         m.scale.set_data(m.scale.exp());
         return h * m.scale;
       },
       kScaled},
      {"set_data of a parameter by an activation",
       [](const Tensor& h, HabitsImpl& m) {
         m.mix.set_data(torch::log(m.scale + 1));
         return h * m.mix;
       },
       kMixed},
      {"set_data of a parameter by a plain tensor",
       [](const Tensor& h, HabitsImpl& m) {
         m.mix.set_data(m.kept * 2);
         return h * m.mix;
       },
       kMixed},
      {"a parameter's data",
       [](const Tensor& h, HabitsImpl& m) { return h * m.mix.data() * m.mix.data().norm(); },
       [](const Tensor& h, HabitsImpl& m) { return h * m.mix.detach(); }},
  };
}

/// What `call` throws; empty where it throws nothing.
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return std::string(error.what()).substr(0, 300);
  }
  return "";
}

struct Found {
  DryCost cost;
  std::string plan;
};

Found found(const HabitsImpl::Habit& habit, int ranks) {
  torch::manual_seed(3);
  Habits model(habit);
  const auto before = model->mix.detach().clone(), scale = model->scale.clone();
  const Tensor x = torch::randn({2, 5, kHidden});
  std::vector<LayerPlan> layers = plannable_layers(model.ptr());
  plan_by_structure(layers);
  FirstWrites writes;
  const auto search = plan_automatically(
      layers, model.ptr(), ranks, [&] { model->forward(x); }, writes);
  std::string plan;
  for (const LayerPlan& layer : layers) plan += layer.path + " " + layer.style.name() + "; ";
  EXPECT_TRUE(torch::equal(model->mix, before));
  EXPECT_TRUE(torch::equal(model->scale, scale));
  return {search.found, plan};
}

TEST(ExampleHabits, PlanIsThatOfTheModelWithoutThem) {
  for (const Case& each : cases()) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(c10::str(each.name, " at ", ranks));
      Found with, without = found(each.plain, ranks);
      EXPECT_EQ(thrown_by([&] { with = found(each.habit, ranks); }), "");
      EXPECT_EQ(with.plan, without.plan);
      EXPECT_EQ(with.cost.bytes, without.cost.bytes);
      EXPECT_EQ(with.cost.gathers, 0);
    }
  }
}

/// MultiheadAttention asks whether its arguments are equal to choose its way.
TEST(ExampleHabits, TensorsAreEqualWhereTheyShowTheSameElements) {
  std::vector<bool> answers;
  found(
      [&](const Tensor& h, HabitsImpl& m) {
        const Tensor other = m.up(h.slice(-1, 0, kHidden));
        answers = {torch::equal(h, h),
                   torch::equal(h.transpose(0, 1), h.transpose(0, 1)),
                   torch::equal(h.detach(), h.view(h.sizes())),
                   torch::equal(h, other),
                   torch::equal(h, torch::zeros_like(h)),
                   torch::equal(h.slice(0, 0, 1), h.slice(0, 1, 2)),
                   torch::equal(m.mix, m.scale),
                   torch::equal(m.mix, m.mix)};
        return h;
      },
      2);
  EXPECT_THAT(answers, testing::ElementsAre(true, true, true, false, false, false, false, true));
}

/// Looks at what no shape has, or asks an operator for values that zeros do not have.
HabitsImpl::Habit looks_at_memory() {
  return [](const Tensor& h, HabitsImpl&) {
    EXPECT_NE(h.contiguous().data_ptr<float>(), nullptr);
    return h;
  };
}

HabitsImpl::Habit needs_values() {
  return [](const Tensor& h, HabitsImpl&) {
    return h + at::cholesky_inverse(h[0].t().matmul(h[0]) + torch::eye(h.size(2))).sum();
  };
}

/// What `initialize` writes to the standard error of `rank`.
std::string told(const HabitsImpl::Habit& habit, int rank, std::string* why = nullptr) {
  Habits model(habit);
  InitializeOptions how;
  how.world = World::fake(rank, 2);
  how.example_inputs = [&] { model->forward(torch::ones({2, 5, kHidden})); };
  const auto config =
      Config::parse(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2}})");
  testing::internal::CaptureStderr();
  try {
    for (const auto& entry : initialize(model, config, how).plan().entries) {
      if (why != nullptr && entry.parameter == "up.weight") *why = entry.why;
    }
  } catch (...) {
    testing::internal::GetCapturedStderr();
    throw;
  }
  std::istringstream lines(testing::internal::GetCapturedStderr());
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("could not be run on shapes") != std::string::npos) kept += line + "\n";
  }
  return kept;
}

TEST(ExampleHabits, AFallbackToNamesIsToldOnceAndWhy) {
  std::string why;
  const std::string memory = told(looks_at_memory(), 0, &why);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), '\n'), 1) << memory;
  EXPECT_THAT(memory, AllOf(HasSubstr("oslo: planned by names and shapes alone"),
                            HasSubstr("the data of a placed tensor was asked for")));
  EXPECT_THAT(why, HasSubstr("by structure"));
  EXPECT_EQ(told(looks_at_memory(), 1), "");
  EXPECT_EQ(told(kScaled, 0), "");
  EXPECT_THAT(told(needs_values(), 0), HasSubstr("aten::cholesky_inverse"));
}

/// Keeps what it computed in a member, as attention modules keep their maps.
struct KeeperImpl : torch::nn::Module {
  KeeperImpl() {
    up = register_module("up", torch::nn::Linear(kHidden, kInner));
    down = register_module("down", torch::nn::Linear(kInner, kHidden));
    bias = register_parameter("bias", torch::zeros({kHidden}));
  }
  Tensor forward(const Tensor& x) {
    map = torch::softmax(up(x), -1);
    whole = down(map);
    weight = up->weight.detach();
    written.slice(0, 0, 1).copy_(whole.detach());
    return whole + bias;
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
  Tensor bias, map, whole, weight, written = torch::ones({3, kHidden});
};
TORCH_MODULE(Keeper);

TEST(ExampleHabits, WhatTheModelKeptThrowsAndNamesTheExample) {
  run_as_threads(3, [](World world) {
    Keeper model = parity::make_seeded(3, [] { return Keeper(); });
    const Tensor x = parity::make_seeded(4, [] { return torch::randn({1, kHidden}); });
    InitializeOptions how = test::in(world);
    how.example_inputs = [&] { model->forward(x); };
    initialize(model, Config::parse(parity::tensor_parallel(3)), how);
    ASSERT_TRUE(is_placed(model->down->weight));
    const std::vector<std::function<void()>> uses = {
        [&] { full_tensor(model->map); },
        [&] { local_tensor(model->map); },
        [&] { model->map.sum(); },
        [&] { model->map.sum().item<double>(); },
        [&] { (model->map * 2).add(1).max().item<double>(); },
        [&] {
          torch::cat({model->up(x), model->map});
        },
        [&] { (model->up(x) + model->map); },
        [&] { x + model->whole; },
        [&] { model->whole.item<double>(); },
        [&] { model->whole.data_ptr<float>(); },
        [&] { model->weight.sum().item<double>(); },
        [&] { model->up(x).matmul(model->weight); },
        [&] { model->weight.data_ptr<float>(); },
        [&] { std::ostringstream() << model->map; },
    };
    for (size_t i = 0; i < uses.size(); ++i) {
      EXPECT_THAT(thrown_by(uses[i]), HasSubstr("example_inputs")) << i;
    }
    // A tensor of the model's own that the forward writes to is as it was.
    EXPECT_TRUE(torch::equal(model->written, torch::ones({3, kHidden})));
    EXPECT_FALSE(model->written.requires_grad());
    model->forward(x);
    EXPECT_NEAR(full_tensor(model->map).sum().item<double>(), 1, 1e-5);
    EXPECT_TRUE(torch::equal(model->written.slice(0, 0, 1), full_tensor(model->whole)));
  });
}

}  // namespace
}  // namespace oslo
