// What training programs do around the steps of a schedule, each against the same program on one
// device.
#include <gmock/gmock.h>

#include "tests/pipeline_habits_test/habit_net.h"
#include "tests/support/bf16.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using pipeline_parity::divided;
using pipeline_parity::make_double;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

/// A step's forward and backward passes, or the forward passes alone; the loss.
using Step = std::function<double(const Tensors& batch, bool forward_only)>;

struct TrainingProgram {
  std::function<std::unique_ptr<Optimizer>(HabitNet&)> optimizer;
  bool optimizer_after = false;  ///< made after initialize
  std::function<void(HabitNet&, Optimizer&, const Step&)> train;
  Habit loss = {};
  std::function<void(HabitNetImpl&)> prepare = {};
  torch::Dtype dtype = torch::kDouble;
  parity::Tolerance tolerance = {1e-9, 1e-9}, weights = {1e-6, 1e-7};
};

Tensor deep(HabitNetImpl& net, const Tensors& micro) {
  Tensor h = micro[0] + net.table(micro[2]).mean(1);
  for (int i = 0; i < kLayers; ++i) h = torch::tanh(net.layer(i, h));
  return torch::mse_loss(h, micro[1]);
}

Tensors batch_of(int seed, int64_t rows = 8) {
  return make_seeded(seed, [&] { return habit_batch(rows); });
}

/// A product and the bias beside it are rounded apart or together.
constexpr parity::Tolerance kBfloat16{2e-2, 4e-3};

/// Both sides take micro-batches one after the other.
void expect_program(const TrainingProgram& program, const Grid& grid, const char* kind,
                    int micro_batches) {
  SCOPED_TRACE(grid.name() + " " + kind);
  const Habit loss = program.loss ? program.loss : Habit(deep);
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    const auto make = [&] {
      HabitNet net;
      if (program.prepare) program.prepare(*net);
      return net;
    };
    auto reference = make_seeded(7, make), net = make_seeded(7, make);
    if (program.dtype == torch::kDouble) {
      make_double(*reference);
      make_double(*net);
    }
    const auto reference_optimizer = program.optimizer(reference);
    std::vector<double> expected, actual;
    program.train(reference, *reference_optimizer, [&](const Tensors& batch, bool forward_only) {
      const torch::AutoGradMode records(!forward_only);
      double sum = 0;
      for (const Tensors& micro : divided(batch, micro_batches * grid.data)) {
        const auto weight =
            static_cast<double>(micro[0].size(0)) / static_cast<double>(batch[0].size(0));
        const Tensor own = loss(*reference, micro) * weight;
        if (!forward_only) own.backward();
        sum += own.item<double>();
      }
      expected.push_back(sum);
      return sum;
    });
    auto optimizer = program.optimizer_after ? nullptr : program.optimizer(net);
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { loss(*net, batch_of(0)); };
    const ParallelModel parallel = initialize(net, Config::parse(habit_config(grid)), how);
    if (program.optimizer_after) optimizer = program.optimizer(net);
    PipelineSchedule schedule(parallel,
                              PipelineOptions().num_microbatches(micro_batches).kind(kind));
    program.train(net, *optimizer, [&](const Tensors& batch, bool forward_only) {
      Tensors own;
      for (const Tensor& tensor : batch) {
        own.push_back(tensor.tensor_split(grid.data)[parallel.mpu().get_data_parallel_rank()]);
      }
      const auto result = schedule.forward_backward_step(
          own, [&](const Tensors& micro) { return loss(*net, micro); },
          StepOptions().forward_only(forward_only));
      actual.push_back(result.loss.item<double>());
      return actual.back();
    });
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; grid.data == 1 && i < expected.size(); ++i) {
      EXPECT_NEAR(actual[i], expected[i], program.tolerance.absolute) << "step " << i;
    }
    parity::for_each_parameter(
        *net, *reference, [&](const std::string& name, const Tensor& mine, const Tensor& theirs) {
          if (is_here(mine)) {
            ASSERT_EQ(mine.grad().defined(), theirs.grad().defined()) << name;
          }
          if (is_here(mine) && mine.grad().defined()) {
            const Tensor gradient =
                theirs.grad().is_sparse() ? theirs.grad().to_dense() : theirs.grad();
            const Tensor own = mine.grad().is_sparse() ? mine.grad().to_dense()
                                                       : pipeline_parity::whole_here(mine.grad());
            parity::expect_close(own, gradient, "gradient of " + name, program.tolerance);
          }
        });
    parity::expect_weights(*net, *reference, program.weights);
  });
}

void expect_program_everywhere(const TrainingProgram& program) {
  for (const Grid& grid : std::vector<Grid>{{1, 1, 2}, {1, 1, 4}, {1, 2, 2}, {2, 1, 2}}) {
    for (const char* kind : {"gpipe", "1f1b"}) expect_program(program, grid, kind, 2);
  }
}

std::unique_ptr<Optimizer> momentum(HabitNet& net) {
  return std::make_unique<torch::optim::SGD>(
      net->parameters(),
      torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
}

void some_steps(HabitNet&, Optimizer& optimizer, const Step& step) {
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    step(batch_of(i), false);
    optimizer.step();
  }
}

/// With weight decay for matrices alone, and a rate of its own for the table.
std::unique_ptr<Optimizer> in_groups(HabitNet& net) {
  std::vector<Tensor> decays, stays;
  for (const Tensor& parameter : net->parameters()) {
    (parameter.dim() > 1 ? decays : stays).push_back(parameter);
  }
  const auto options = [](double rate, double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(rate).weight_decay(decay));
  };
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(decays, options(1e-2, 0.1));
  groups.emplace_back(stays, options(3e-3, 0));
  return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(1e-3));
}

TEST(PipelineTraining, GroupsOfParametersAndSchedulesOfRates) {
  for (const bool after : {false, true}) {
    expect_program_everywhere(
        {in_groups, after, [](HabitNet&, Optimizer& optimizer, const Step& step) {
           torch::optim::StepLR rate(optimizer, 1, 0.5);
           for (int i = 0; i < 4; ++i) {
             optimizer.zero_grad();
             step(batch_of(i), false);
             optimizer.step();
             rate.step();
           }
         }});
  }
}

TEST(PipelineTraining, OtherOptimizers) {
  using Make = std::function<std::unique_ptr<Optimizer>(HabitNet&)>;
  const std::vector<Make> optimizers{
      momentum,
      [](HabitNet& net) {
        return std::make_unique<torch::optim::Adam>(
            net->parameters(), torch::optim::AdamOptions(1e-2).amsgrad(true).weight_decay(0.01));
      },
      [](HabitNet& net) {
        return std::make_unique<torch::optim::RMSprop>(
            net->parameters(), torch::optim::RMSpropOptions(1e-3).centered(true).momentum(0.5));
      },
      [](HabitNet& net) {
        return std::make_unique<torch::optim::Adagrad>(net->parameters(),
                                                       torch::optim::AdagradOptions(1e-2));
      }};
  for (const Make& make : optimizers) {
    expect_program({make, false, some_steps}, {1, 2, 2}, "1f1b", 2);
    expect_program({make, true, some_steps}, {1, 1, 4}, "gpipe", 2);
  }
}

/// Also of the layers that two stages have copies of.
TEST(PipelineTraining, GradientsAddUpOverSteps) {
  TrainingProgram program{momentum, false,
                          [](HabitNet& net, Optimizer& optimizer, const Step& step) {
                            for (int i = 0; i < 4; ++i) {
                              step(batch_of(i), false);
                              if (i % 2 == 0) continue;
                              optimizer.step();
                              if (i == 1) net->zero_grad(/*set_to_none=*/false);
                            }
                          }};
  program.loss = [](HabitNetImpl& net, const Tensors& micro) {
    return deep(net, {net.layer(0, net.layer(3, micro[0])), micro[1], micro[2]});
  };
  expect_program_everywhere(program);
}

TEST(PipelineTraining, EvaluationsBetweenSteps) {
  TrainingProgram program{momentum, false,
                          [](HabitNet& net, Optimizer& optimizer, const Step& step) {
                            for (int i = 0; i < 3; ++i) {
                              net->train();
                              optimizer.zero_grad();
                              step(batch_of(i), false);
                              net->eval();
                              step(batch_of(50 + i), true);
                              optimizer.step();
                              step(batch_of(50 + i), true);
                            }
                          }};
  program.loss = [](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.norm(net.layer(1, micro[0]));
    return deep(net, {h, micro[1], micro[2]});
  };
  expect_program(program, {1, 1, 2}, "1f1b", 2);
  expect_program(program, {1, 1, 4}, "gpipe", 2);
  expect_program(program, {1, 2, 2}, "1f1b", 2);
}

TEST(PipelineTraining, BareForwardsBetweenSteps) {
  TrainingProgram program{
      momentum, false, [](HabitNet& net, Optimizer& optimizer, const Step& step) {
        for (int i = 0; i < 3; ++i) {
          optimizer.zero_grad();
          step(batch_of(i), false);
          optimizer.step();
          const torch::NoGradGuard no_grad;
          Tensor x = batch_of(60)[0];
          for (int k = 0; k < kLayers; ++k) x = torch::tanh(net->layer(k, x));
          step({full_tensor(x), x.new_zeros({8, kWide}), batch_of(60)[2]}, true);
        }
      }};
  expect_program(program, {1, 1, 2}, "1f1b", 2);
  expect_program(program, {1, 2, 2}, "1f1b", 2);
}

TEST(PipelineTraining, ClippingByValue) {
  expect_program_everywhere(
      {momentum, false, [](HabitNet& net, Optimizer& optimizer, const Step& step) {
         for (int i = 0; i < 3; ++i) {
           optimizer.zero_grad();
           step(batch_of(i), false);
           torch::nn::utils::clip_grad_value_(net->parameters(), 1e-2);
           optimizer.step();
         }
       }});
}

TEST(PipelineTraining, LayersThatAreFrozenAndThawedOnTheWay) {
  expect_program_everywhere(
      {momentum, false, [](HabitNet& net, Optimizer& optimizer, const Step& step) {
         for (int i = 0; i < kLayers; ++i) {
           net->zero_grad();
           for (Tensor& each : net->layers[i]->parameters()) {
             each.requires_grad_(false);
           }
           step(batch_of(i), false);
           optimizer.step();
           for (Tensor& each : net->layers[i]->parameters()) {
             each.requires_grad_(true);
           }
         }
       }});
}

TEST(PipelineTraining, RowsThatNothingDivides) {
  TrainingProgram program{momentum, false, [](HabitNet&, Optimizer& optimizer, const Step& step) {
                            for (const int64_t rows : {10, 14, 6}) {
                              optimizer.zero_grad();
                              step(batch_of(static_cast<int>(rows), rows), false);
                              optimizer.step();
                            }
                          }};
  expect_program(program, {1, 2, 2}, "1f1b", 3);
  expect_program(program, {1, 1, 4}, "gpipe", 4);
}

TEST(PipelineTraining, WeightsInBfloat16) {
  TrainingProgram program{momentum, false, some_steps};
  program.dtype = torch::kBFloat16;
  program.tolerance = program.weights = kBfloat16;
  program.prepare = [](HabitNetImpl& net) { net.to(torch::kBFloat16); };
  program.loss = [](HabitNetImpl& net, const Tensors& micro) {
    return deep(net, {micro[0].to(torch::kBFloat16), micro[1].to(torch::kBFloat16), micro[2]})
        .to(torch::kFloat);
  };
  expect_program(program, {1, 1, 2}, "1f1b", 2);
  expect_program(program, {1, 1, 4}, "gpipe", 4);
}

TEST(PipelineTraining, Autocast) {
  TrainingProgram program{momentum, false, some_steps};
  program.dtype = torch::kFloat;
  program.tolerance = program.weights = kBfloat16;
  program.loss = [](HabitNetImpl& net, const Tensors& micro) {
    const Tensor x = micro[0].to(torch::kFloat), wanted = micro[1].to(torch::kFloat);
    Tensor y;
    {
      const Autocast on;
      Tensor h = x + net.table(micro[2]).mean(1);
      for (int i = 0; i < kLayers; ++i) h = torch::tanh(net.layer(i, h));
      y = net.layer(0, h);
    }
    return torch::mse_loss(y.to(torch::kFloat), wanted);
  };
  expect_program(program, {1, 1, 2}, "1f1b", 2);
  expect_program(program, {1, 1, 4}, "gpipe", 4);
}

/// On one stage, and on two, where another use gives it a dense gradient.
TEST(PipelineTraining, TablesWithSparseGradients) {
  for (const bool twice : {false, true}) {
    TrainingProgram program{[](HabitNet& net) {
                              return std::make_unique<torch::optim::SGD>(
                                  net->parameters(), torch::optim::SGDOptions(0.1));
                            },
                            false, some_steps};
    program.prepare = [](HabitNetImpl& net) { net.table->options.sparse(true); };
    program.loss = [twice](HabitNetImpl& net, const Tensors& micro) {
      const Tensor loss = deep(net, micro);
      if (!twice) return loss;
      const Tensor h = net.layer(3, micro[0]);
      return loss + torch::matmul(h, net.table->weight.t()).pow(2).mean() +
             net.layer(3, net.table(micro[2]).mean(1)).pow(2).mean();
    };
    expect_program(program, {1, 1, 2}, "1f1b", 2);
    expect_program(program, {1, 1, 4}, "gpipe", 2);
    expect_program(program, {2, 1, 2}, "1f1b", 2);
  }
}

/// Of two kinds and numbers of micro-batches, in turn; and the model becomes another type on the
/// way.
TEST(PipelineTraining, TwoSchedulesOfOneModel) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    HabitNet net = make_seeded(7, [] { return HabitNet(); }),
             reference = make_seeded(7, [] { return HabitNet(); });
    InitializeOptions how;
    how.world = world;
    const ParallelModel parallel = initialize(net, Config::parse(habit_config({1, 1, 2})), how);
    PipelineSchedule many(parallel, PipelineOptions().num_microbatches(4).kind("gpipe"));
    PipelineSchedule two(parallel, PipelineOptions().num_microbatches(2).kind("1f1b"));
    net->to(torch::kDouble);
    reference->to(torch::kDouble);
    for (int i = 0; i < 4; ++i) {
      const Tensors batch = batch_of(i);
      const Tensor expected = deep(*reference, batch);
      expected.backward();
      const auto result =
          (i % 2 == 0 ? many : two).forward_backward_step(batch, [&](const Tensors& micro) {
            return deep(*net, micro);
          });
      EXPECT_NEAR(result.loss.item<double>(), expected.item<double>(), 1e-9);
      pipeline_parity::expect_gradients(*net, *reference);
    }
  });
}

TEST(PipelineTraining, ACheckpointInTheMiddle) {
  for (const Grid& grid : {Grid{1, 1, 2}, Grid{1, 2, 2}}) {
    const TemporaryDirectory folder;
    run_as_threads(grid.size(), [&](World world) {
      const auto make = [] {
        HabitNet net;
        make_double(*net);
        return net;
      };
      const auto run = [&](HabitNet& net, const ParallelModel& parallel, int first, int last) {
        torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
        PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
        for (int i = first; i < last; ++i) {
          optimizer.zero_grad();
          schedule.forward_backward_step(batch_of(i),
                                         [&](const Tensors& micro) { return deep(*net, micro); });
          optimizer.step();
        }
      };
      InitializeOptions how;
      how.world = world;
      const auto config = Config::parse(habit_config(grid));
      auto whole = make_seeded(7, make), halves = make_seeded(7, make),
           fresh = make_seeded(9, make);
      run(whole, initialize(whole, config, how), 0, 4);
      const ParallelModel first = initialize(halves, config, how);
      run(halves, first, 0, 2);
      first.save_parallelized((folder.path() / "middle").string());
      const ParallelModel second = initialize(fresh, config, how);
      second.from_parallelized((folder.path() / "middle").string());
      run(fresh, second, 2, 4);
      const auto parameters = fresh->named_parameters();
      for (const auto& item : whole->named_parameters()) {
        EXPECT_TRUE(torch::equal(full_tensor(parameters[item.key()]), full_tensor(item.value())))
            << item.key();
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test
