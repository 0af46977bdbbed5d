// Which gradients come over the stages, and to whom, each against one device.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/pipeline_habits_test/habit_net.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace {

TEST(PipelineGradients, FrozenLayers) {
  for (const int frozen : {0, 1, 2, 3}) {
    HabitTrial how;
    how.prepare = [&](HabitNetImpl& net) {
      for (Tensor& parameter : net.layers[frozen]->parameters()) parameter.requires_grad_(false);
      if (frozen == 0) net.layers[1]->weight.requires_grad_(false);
    };
    expect_habit(
        [](HabitNetImpl& net, const Tensors& micro) {
          Tensor h = micro[0];
          for (int i = 0; i < kLayers; ++i) h = torch::tanh(net.layer(i, h));
          return error_of_rows(h, micro[1]);
        },
        how);
  }
}

TEST(PipelineGradients, ParametersThatSomeMicroBatchesUse) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const auto even = [&](int i) { return micro[2][0][i].item<int64_t>() % 2 == 0; };
    Tensor h = net.layer(0, micro[0]);
    if (even(0)) h = torch::tanh(net.layer(1, h));
    if (even(1)) h = h + net.table(micro[2]).mean(1);
    if (even(2)) h = h.detach();
    if (even(3)) h = torch::tanh(net.layer(2, h));
    return error_of_rows(net.layer(3, h), micro[1]);
  });
}

/// What a later stage computes of it and drops gives it no gradient: none, not zeros, by which
/// AdamW would decay its weight.
TEST(PipelineGradients, WhatTheLossDoesNotDependOnHasNoGradient) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    const Tensor dropped = net.layer(3, net.layer(1, micro[0]));
    return error_of_rows(net.layer(3, h) + 0 * dropped.detach(), micro[1]);
  });
}

TEST(PipelineGradients, ATeacherWithoutGradients) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    Tensor wanted;
    {
      const torch::NoGradGuard no_grad;
      wanted = net.layer(3, torch::tanh(net.layer(0, micro[1])));
    }
    const Tensor h = net.layer(3, torch::tanh(net.layer(0, micro[0])));
    return error_of_rows(h, wanted) + 0.1 * h.pow(2).mean();
  });
}

struct Gate : torch::autograd::Function<Gate> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& weight, double scale) {
    context->save_for_backward({x, weight});
    context->saved_data["scale"] = scale;
    return x * weight * scale;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const double scale = context->saved_data["scale"].toDouble();
    const Tensor both = gradients[0] * scale;
    return {both * saved[1], (both * saved[0]).sum(0), Tensor()};
  }
};

TEST(PipelineGradients, AFunctionOfTheUsersOwn) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    const Tensor gated = Gate::apply(h, net.layers[0]->bias, 0.7);
    const Tensor next = net.layer(3, gated);
    return error_of_rows(Gate::apply(next, net.layers[3]->bias, 0.3) + gated, micro[1]);
  });
}

/// Its forward records nothing, so that a gradient would not find its way back to stage 0. Of a
/// parameter, and of views of one, stage 0 would get a copy (written_out.cpp), of what stage 1 made
/// of its own value it cannot.
TEST(PipelineGradients, AFunctionOfTheUsersOwnOverABoundaryIsRefusedOnEveryRank) {
  std::vector<std::string> errors(2);
  run_as_threads(2, [&](World world) {
    HabitNet net = make_seeded(7, [] { return HabitNet(); });
    InitializeOptions how;
    how.world = world;
    const ParallelModel parallel = initialize(net, Config::parse(habit_config({1, 1, 2})), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    errors[world.rank()] = error_of([&] {
      schedule.forward_backward_step({torch::ones({4, kWide})}, [&](const Tensors& micro) {
        const Tensor h = net->layer(0, micro[0]);
        return Gate::apply(h, net->layer(3, h).mean(0), 0.7).mean();
      });
    });
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::AllOf(::testing::HasSubstr("Gate"),
                                                       ::testing::HasSubstr("of one stage"))));
}

TEST(PipelineGradients, AWeightThatForwardComputes) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor &v = net.layers[3]->weight, &g = net.layers[3]->bias;
    const Tensor weight = v * (g.unsqueeze(1) / v.norm(2, {1}, true));
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    return error_of_rows(torch::linear(torch::linear(h, weight), net.layers[2]->weight), micro[1]);
  });
}

/// Its stages are those of the weight.
TEST(PipelineGradients, AWeightThatIsDetachedForAnotherStage) {
  for (const bool example : {true, false}) {
    HabitTrial how;
    how.example = example;
    expect_habit(
        [](HabitNetImpl& net, const Tensors& micro) {
          const Tensor h = torch::tanh(net.layer(0, micro[0]));
          const Tensor y = torch::linear(net.layer(3, h), net.layers[0]->weight.detach());
          return error_of_rows(y + net.layers[1]->bias.detach(), micro[1]);
        },
        how);
  }
}

TEST(PipelineGradients, LossesOfSeveralStages) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    Tensor h = micro[0], sum;
    for (int i = 0; i < kLayers; ++i) {
      h = torch::tanh(net.layer(i, h));
      const Tensor own = error_of_rows(h, micro[1]) * (0.1 * (i + 1));
      sum = sum.defined() ? own + sum : own;
    }
    for (auto& layer : net.layers) sum = sum + 1e-3 * layer->weight.pow(2).sum();
    return sum;
  });
}

TEST(PipelineGradients, HooksOnWhatCrosses) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    if (h.requires_grad()) h.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
    const Tensor y = net.layer(3, h) + net.layer(1, h);
    if (y.requires_grad()) y.register_hook([](const Tensor& gradient) { return gradient.sign(); });
    return error_of_rows(y, micro[1]);
  });
}

TEST(PipelineGradients, HooksOnParameters) {
  HabitTrial how;
  how.prepare = [](HabitNetImpl& net) {
    for (auto& layer : net.layers) {
      layer->weight.register_hook([](const Tensor& gradient) { return gradient * 0.25; });
    }
  };
  expect_habit(
      [](HabitNetImpl& net, const Tensors& micro) {
        const Tensor h = torch::tanh(net.layer(0, micro[0]));
        return error_of_rows(net.layer(3, net.layer(0, h)), micro[1]);
      },
      how);
}

/// pytorch#180952: a weight twice on one path, on one stage and on two, whose ranks may be one.
TEST(PipelineGradients, AWeightTwiceOnOnePath) {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      first = register_module("first", torch::nn::Linear(2, 2));
      w = register_parameter("w", torch::tensor({{.4, -.2}, {.7, .3}}, torch::kDouble));
      last = register_module("last", torch::nn::Linear(2, 2));
    }
    torch::nn::Linear first{nullptr}, last{nullptr};
    Tensor w;
  };
  const auto expect_product = [](const std::string& kind, int last, const std::string& stages) {
    SCOPED_TRACE(kind + ", w on " + stages);
    run_as_threads(2, [&](World world) {
      auto net = make_seeded(1, [] { return std::make_shared<NetImpl>(); });
      InitializeOptions how;
      how.world = world;
      const std::string config =
          c10::str(R"({"parallel": {"pipeline": {"size": 2, "schedule": ")", kind,
                   R"("}}, "stages": {"first": 0, "last": )", last, R"(, "w": )", stages, "}}");
      const ParallelModel parallel =
          initialize(std::shared_ptr<torch::nn::Module>(net), Config::parse(config), how);
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4));
      const Tensor row = torch::tensor({{1.1, -.7}}, torch::kDouble);
      const auto result =
          schedule.forward_backward_step({row.repeat({4, 1})}, [&](const Tensors& micro) {
            // Each product on the stage of what is added to its input, where w is on both.
            const Tensor x = micro[0] + 0 * net->first->bias.detach();
            const Tensor h = x.matmul(net->w);
            const bool both = stages.front() == '[';
            return (both ? h + 0 * net->last->bias.detach() : h).matmul(net->w).sum();
          });
      EXPECT_NEAR(result.loss.item<double>(), -.44, 1e-6);
      if (!is_here(net->w)) return;
      EXPECT_TRUE(torch::allclose(local_tensor(net->w.grad()),
                                  torch::tensor({{.17, 1.05}, {-.57, -1.13}}, torch::kDouble), 1e-6,
                                  1e-6));
    });
  };
  for (const std::string& kind : pipeline::schedule_kinds()) {
    const int last = 2 * pipeline::default_chunks(kind) - 1;
    expect_product(kind, last, "0");
    expect_product(kind, last, std::to_string(last));
    expect_product(kind, last, c10::str("[0, ", last, "]"));
  }
}

/// Each rank has the gradients of its own stages alone. Every way to a number of them is refused,
/// though a rank asks only those that are defined; ours gives the model's.
TEST(PipelineGradients, NumbersOfThemThatARankReadsAreRefused) {
  using Read = std::function<double(const std::vector<Tensor>& gradients)>;
  const std::vector<std::pair<const char*, Read>> reads{
      {"a norm by hand",
       [](const auto& gradients) {
         double sum = 0;
         for (const Tensor& each : gradients) sum += std::pow(each.norm().item().toDouble(), 2);
         return std::sqrt(sum);
       }},
      {"a sum of squares",
       [](const auto& gradients) {
         Tensor sum = torch::zeros({}, torch::kDouble);
         for (const Tensor& each : gradients) sum = sum + each.pow(2).sum();
         return sum.sqrt().item().toDouble();
       }},
      {"the same in place",
       [](const auto& gradients) {
         Tensor sum = torch::zeros({}, torch::kDouble);
         for (const Tensor& each : gradients) sum += (each * each).sum();
         return sum.sqrt().template item<double>();
       }},
      {"one gradient's, in place",
       [](const auto& gradients) {
         Tensor sum = torch::zeros({}, torch::kDouble);
         sum += (gradients[0] * gradients[0]).sum();
         return sum.template item<double>();
       }},
      {"norms that are stacked",
       [](const auto& gradients) {
         std::vector<Tensor> norms;
         for (const Tensor& each : gradients) norms.push_back(each.detach().norm());
         return torch::stack(norms).norm().template item<double>();
       }},
      {"through data()",
       [](const auto& gradients) {
         return gradients[0].data().abs().max().template item<double>();
       }},
      {"whether all are finite",
       [](const auto& gradients) {
         bool finite = true;
         for (const Tensor& each : gradients) finite &= each.isfinite().all().template item<bool>();
         return finite ? 1. : 0.;
       }},
      {"the same, of tensors",
       [](const auto& gradients) {
         Tensor bad = torch::zeros({}, torch::kBool);
         for (const Tensor& each : gradients) bad = bad.logical_or(each.isnan().any());
         return bad.template item<bool>() ? 1. : 0.;
       }},
      {"an element",
       [](const auto& gradients) { return gradients[0].flatten()[0].template item<double>(); }},
      {"a copy's",
       [](const auto& gradients) { return gradients[0].clone().sum().template item<double>(); }},
      {"how many are not zero",
       [](const auto& gradients) { return 1. * gradients[0].nonzero().size(0); }},
      {"whether two are equal",
       [](const auto& gradients) {
         return torch::equal(gradients[0], gradients[0] * 2) ? 1. : 0.;
       }},
      {"a scaler's", [](const auto& gradients) {
         Tensor found = torch::zeros({}, torch::kFloat);
         Tensor factor = torch::ones({}, torch::kFloat);
         std::vector<Tensor> all = gradients;
         at::_amp_foreach_non_finite_check_and_unscale_(all, found, factor);
         return found.template item<double>();
       }}};
  for (const Grid grid : {Grid{1, 1, 2}, Grid{1, 2, 2}}) {
    run_as_threads(grid.size(), [&](World world) {
      at::set_num_threads(1);
      HabitNet net = make_seeded(7, [] { return HabitNet(); });
      pipeline_parity::make_double(*net);
      const auto loss = [&](const Tensors& micro) {
        return torch::mse_loss(net->layer(3, torch::tanh(net->layer(0, micro[0]))), micro[1]);
      };
      HabitNet alone = make_seeded(7, [] { return HabitNet(); });
      pipeline_parity::make_double(*alone);
      const Tensors batch = make_seeded(8, [] { return habit_batch(); });
      torch::mse_loss(alone->layer(3, torch::tanh(alone->layer(0, batch[0]))), batch[1]).backward();
      InitializeOptions how;
      how.world = world;
      how.example_inputs = [&] { loss(batch); };
      const auto parallel = initialize(net, Config::parse(habit_config(grid)), how);
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
      for (int step = 0; step < 2; ++step) {  // what is refused leaves nothing behind
        net->zero_grad();
        schedule.forward_backward_step(batch, loss);
        std::vector<Tensor> gradients;
        for (const Tensor& each : net->parameters()) {
          if (each.grad().defined()) gradients.push_back(each.grad());
        }
        ASSERT_FALSE(gradients.empty());
        for (const auto& [name, read] : reads) {
          SCOPED_TRACE(name);
          const std::string told = error_of([&] { read(gradients); });
          const bool in_place = name == std::string("the same in place");
          EXPECT_THAT(
              told, testing::HasSubstr(in_place ? "that pipeline stage"
                                                : "reads a number of the gradients that pipeline"));
          EXPECT_THAT(told, testing::HasSubstr("parallel.clip_grad_norm_"));
        }
        // Ranks of other stages have other gradients, and would draw less or more.
        const std::vector<std::pair<const char*, std::function<void(const Tensor&)>>> draws{
            {"like the gradient", [](const Tensor& g) { g.add_(torch::randn_like(g), 0.1); }},
            {"into a tensor like it", [](const Tensor& g) { torch::empty_like(g).normal_(); }},
            {"into a copy of it", [](const Tensor& g) { g.clone().uniform_(); }},
            {"dropout", [](const Tensor& g) { torch::dropout(g, 0.5, true); }}};
        for (const auto& [name, draw] : draws) {
          EXPECT_THAT(error_of([&] { draw(gradients[0]); }),
                      testing::HasSubstr("draws random numbers for gradients that pipeline"))
              << name;
        }
        // Every rank draws for every parameter.
        for (const Tensor& each : net->parameters()) {
          const Tensor noise = torch::randn_like(each);
          if (each.grad().defined()) each.grad().add_(noise, 0.);
        }
        const double norm = parallel.clip_grad_norm_(INFINITY);
        EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(alone->parameters(), INFINITY), 1e-9);
        // A stage's own, by name; and what stays on its stage.
        EXPECT_GE(local_tensor(gradients[0].norm()).item<double>(), 0);
        const torch::NoGradGuard no_grad;
        for (Tensor each : gradients) each.mul_(local_tensor(each.norm()));
        const Tensor y = net->layer(3, net->layer(0, batch[0]));
        if (is_here(y)) {
          EXPECT_GT(y.abs().sum().item<double>(), 0);
        }
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test
