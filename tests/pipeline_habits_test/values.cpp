// What a forward may do with values that lie on several pipeline stages, each against one device.
#include <gmock/gmock.h>

#include "tests/pipeline_habits_test/habit_net.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace {

using torch::indexing::Slice;

Tensor error_of_rows(const Tensor& y, const Tensor& wanted) {
  return torch::mse_loss(y, wanted);
}

/// How many rows there are is known to the stage that has the mask; they have gradients everywhere.
TEST(PipelineValues, RowsByAMaskCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.layer(0, micro[0]);
    const Tensor rows = h.index({h.select(1, 0) > 0});
    return net.layer(3, rows).pow(2).sum() / 12 + net.layer(1, h).pow(2).mean();
  });
}

TEST(PipelineValues, ElementsByAMaskCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.layer(0, micro[0]);
    const Tensor above = torch::masked_select(h, h > 0.1);
    Tensor scaled = above * net.layers[3]->bias[0];
    scaled.add_(1);
    return scaled.pow(2).sum() / 12;
  });
}

TEST(PipelineValues, RowsByNumbersThatWereFoundCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.layer(0, micro[0]);
    const Tensor found = (h.sum(1) > 0).nonzero().squeeze(1);
    const Tensor rows = net.layer(2, h.index_select(0, found));
    return net.layer(3, rows).pow(2).sum() / 12 + h.pow(2).mean();
  });
}

TEST(PipelineValues, LengthsChangeFromMicroBatchToMicroBatch) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const int64_t length = 2 + micro[2][0][0].item<int64_t>() % 3;
    const Tensor words = net.layer(0, net.table(micro[2].slice(1, 0, length)));
    return error_of_rows(net.layer(3, torch::tanh(net.layer(2, words))).mean(1), micro[1]);
  });
}

TEST(PipelineValues, SpectraCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor spectrum = torch::fft::rfft(net.layer(0, micro[0]));
    const Tensor real = net.layers[3]->weight[0].slice(0, 0, 4);
    const Tensor filtered =
        spectrum * torch::complex(real, net.layers[3]->weight[1].slice(0, 0, 4));
    const Tensor back = torch::fft::irfft(filtered, kWide) + torch::view_as_real(spectrum).mean();
    return error_of_rows(net.layer(2, back), micro[1]);
  });
}

TEST(PipelineValues, RotationsByComplexNumbersCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const auto angles = torch::arange(3, torch::kDouble) * 0.3;
    const Tensor turn = torch::polar(torch::ones(3, torch::kDouble), angles);
    const Tensor pairs = torch::view_as_complex(net.layer(0, micro[0]).view({-1, 3, 2}));
    const Tensor turned = torch::view_as_real(pairs * turn * net.layers[2]->bias[0]).flatten(1);
    return error_of_rows(net.layer(3, turned), micro[1]);
  });
}

/// An early exit: which stage has the loss depends on the micro-batch.
TEST(PipelineValues, TheLossOfEachMicroBatchLiesOnAStageOfItsOwn) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    if (micro[2][0][0].item<int64_t>() % 2 == 0) return error_of_rows(h, micro[1]);
    return error_of_rows(net.layer(3, h), micro[1]);
  });
}

TEST(PipelineValues, BatchNormAndItsStatistics) {
  for (const bool example : {true, false}) {
    HabitTrial how;
    how.example = example;
    expect_habit(
        [](HabitNetImpl& net, const Tensors& micro) {
          const Tensor h = torch::relu(net.norm(net.layer(0, micro[0])));
          return error_of_rows(net.layer(3, h), micro[1]);
        },
        how);
  }
}

/// As in ALBERT: every stage has a copy of it.
TEST(PipelineValues, ALayerThatEveryStageUses) {
  for (const bool example : {true, false}) {
    HabitTrial how;
    how.example = example;
    expect_habit(
        [](HabitNetImpl& net, const Tensors& micro) {
          Tensor h = micro[0];
          for (int i = 0; i < kLayers; ++i) h = torch::tanh(net.layer(0, h)) + net.layer(i, h);
          return error_of_rows(net.layer(0, h), micro[1]);
        },
        how);
  }
}

TEST(PipelineValues, LoopsUntilAValueIsLargeEnough) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    Tensor h = net.layer(0, micro[0]);
    int turns = 0;
    while (h.norm().item<double>() < 40 && turns++ < 6) h = h * 1.5 + net.layer(1, h);
    h = net.layer(2, h);
    if (h.sum().item<double>() > 0) h = torch::tanh(net.layer(3, h));
    return error_of_rows(h, micro[1]);
  });
}

TEST(PipelineValues, FrozenLayers) {
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

TEST(PipelineValues, ParametersThatSomeMicroBatchesUse) {
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
TEST(PipelineValues, WhatTheLossDoesNotDependOnHasNoGradient) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    const Tensor dropped = net.layer(3, net.layer(1, micro[0]));
    return error_of_rows(net.layer(3, h) + 0 * dropped.detach(), micro[1]);
  });
}

TEST(PipelineValues, ATeacherWithoutGradients) {
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

TEST(PipelineValues, WritesInPlaceBeforeAndAfterACrossing) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    Tensor h = net.layer(0, micro[0]);
    h.mul_(0.5);
    const Tensor first = net.layer(3, h.clone());
    h = torch::relu_(h.add_(0.25));
    const Tensor second = net.layer(3, h);
    Tensor sum = first + second;
    sum.slice(1, 0, 3).mul_(2);
    sum.index_put_({Slice(), 4}, sum.select(1, 4).detach() * 0.5);
    return error_of_rows(net.layer(2, sum.tanh_()), micro[1]);
  });
}

TEST(PipelineValues, ViewsOfAValueThatIsWrittenBetweenStages) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.layer(0, micro[0]).clone();
    const Tensor left = h.narrow(1, 0, 3);
    const Tensor before = net.layer(3, torch::cat({left, left}, 1));
    left.mul_(2);
    const Tensor after = net.layer(3, h) + before;
    return error_of_rows(after, micro[1]);
  });
}

/// An ordinary tensor of the program, filled with values of several stages.
TEST(PipelineValues, ACacheOfTheProgram) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    std::vector<Tensor> kept;
    Tensor h = micro[0];
    for (int i = 0; i < kLayers; ++i) {
      h = torch::tanh(net.layer(i, h));
      Tensor cache = torch::zeros({h.size(0), 2, kWide}, h.options());
      cache.select(1, 0).copy_(h.detach());
      cache.select(1, 1).copy_(2 * h.detach());
      Tensor whole = torch::zeros({h.size(0), kWide}, h.options());
      whole.copy_(h);
      kept.push_back(cache.sum(1) * whole);
    }
    return error_of_rows(torch::stack(kept).sum(0), micro[1]);
  });
}

TEST(PipelineValues, NumbersAndMasksCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.table(micro[2]).mean(1) + net.layer(0, micro[0]);
    const Tensor words = std::get<1>(torch::cat({h, h}, 1).slice(1, 0, kWords).max(1));
    const Tensor positive = h > 0, order = h.argsort(1, false);
    Tensor y = net.layer(3, net.late(words)).masked_fill(positive, 0.5);
    y = y.gather(1, order) + torch::one_hot(words, kWords).slice(1, 0, kWide) * 0.1;
    y = torch::where(positive.logical_not(), y, h * 0.5) +
        words.unsqueeze(1).to(torch::kInt) * 0.01;
    return error_of_rows(y, micro[1]);
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

TEST(PipelineValues, AFunctionOfTheUsersOwn) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    const Tensor gated = Gate::apply(h, net.layers[0]->bias, 0.7);
    const Tensor next = net.layer(3, gated);
    return error_of_rows(Gate::apply(next, net.layers[3]->bias, 0.3) + gated, micro[1]);
  });
}

/// Its forward records nothing, so that a gradient would not find its way back to stage 0.
TEST(PipelineValues, AFunctionOfTheUsersOwnOverABoundaryIsRefusedOnEveryRank) {
  std::vector<std::string> errors(2);
  run_as_threads(2, [&](World world) {
    HabitNet net = make_seeded(7, [] { return HabitNet(); });
    InitializeOptions how;
    how.world = world;
    const ParallelModel parallel = initialize(net, Config::parse(habit_config({1, 1, 2})), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    errors[world.rank()] = error_of([&] {
      schedule.forward_backward_step({torch::ones({4, kWide})}, [&](const Tensors& micro) {
        return (Gate::apply(net->layer(0, micro[0]), net->layers[3]->bias, 0.7) * 2).mean();
      });
    });
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::AllOf(::testing::HasSubstr("Gate"),
                                                       ::testing::HasSubstr("of one stage"))));
}

TEST(PipelineValues, AWeightThatForwardComputes) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor &v = net.layers[3]->weight, &g = net.layers[3]->bias;
    const Tensor weight = v * (g.unsqueeze(1) / v.norm(2, {1}, true));
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    return error_of_rows(torch::linear(torch::linear(h, weight), net.layers[2]->weight), micro[1]);
  });
}

TEST(PipelineValues, LossesOfSeveralStages) {
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

TEST(PipelineValues, HooksOnWhatCrosses) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    if (h.requires_grad()) h.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
    const Tensor y = net.layer(3, h) + net.layer(1, h);
    if (y.requires_grad()) y.register_hook([](const Tensor& gradient) { return gradient.sign(); });
    return error_of_rows(y, micro[1]);
  });
}

TEST(PipelineValues, HooksOnParameters) {
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

/// pytorch#180952: a weight twice on one path, on one stage and on two.
TEST(PipelineValues, AWeightTwiceOnOnePath) {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      first = register_module("first", torch::nn::Linear(2, 2));
      w = register_parameter("w", torch::tensor({{.4, -.2}, {.7, .3}}, torch::kDouble));
      last = register_module("last", torch::nn::Linear(2, 2));
    }
    torch::nn::Linear first{nullptr}, last{nullptr};
    Tensor w;
  };
  for (const char* stages : {"0", "1", "[0, 1]"}) {
    for (const char* kind : {"naive", "gpipe", "1f1b"}) {
      run_as_threads(2, [&](World world) {
        auto net = make_seeded(1, [] { return std::make_shared<NetImpl>(); });
        InitializeOptions how;
        how.world = world;
        const std::string config =
            c10::str(R"({"parallel": {"pipeline": 2}, "stages": {"first": 0, "last": 1, "w": )",
                     stages, "}}");
        const ParallelModel parallel =
            initialize(std::shared_ptr<torch::nn::Module>(net), Config::parse(config), how);
        PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(1).kind(kind));
        const auto result = schedule.forward_backward_step(
            {torch::tensor({{1.1, -.7}}, torch::kDouble)}, [&](const Tensors& micro) {
              Tensor h = micro[0].matmul(net->w);
              // The second product on the other stage, where both have it.
              if (std::string(stages) == "[0, 1]") h = h + 0 * net->last->bias.detach();
              return h.matmul(net->w).sum();
            });
        EXPECT_NEAR(result.loss.item<double>(), -.44, 1e-6);
        if (!is_here(net->w)) return;
        EXPECT_TRUE(torch::allclose(local_tensor(net->w.grad()),
                                    torch::tensor({{.17, 1.05}, {-.57, -1.13}}, torch::kDouble),
                                    1e-6, 1e-6));
      });
    }
  }
}

}  // namespace
}  // namespace oslo::test
