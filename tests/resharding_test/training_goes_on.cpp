// Training goes on in another layout as it would have gone on on one device.
#include <gmock/gmock.h>
#include <torch/optim/adagrad.h>

#include <memory>
#include <vector>

#include "tests/resharding_test/known_states.h"
#include "tests/resharding_test/resharding_layouts.h"
#include "tests/resharding_test/training.h"
#include "tests/support/error_of.h"
#include "tests/support/seeded.h"

namespace oslo::resharding_test {
namespace {

TEST(Reshard, InTheMiddleOfTrainingGoesOnAsOneDeviceDoes) {
  for (const Kind kind : kKinds) {
    Gpt2 plain = make_double();
    const auto plain_optimizer = make_optimizer(kind, plain);
    for (int step = 0; step < 4; ++step) {
      plain_optimizer->zero_grad();
      step_plainly(plain, *plain_optimizer);
    }
    const auto expected = in_use(plain);
    for (const std::vector<GridCase>& grids : layouts_by_world()) {
      for (size_t i = 0; i < grids.size(); ++i) {
        const GridCase& from = grids[i];
        const GridCase& to = grids[(i + 1) % grids.size()];
        SCOPED_TRACE(from.name + " to " + to.name);
        run_as_threads(from.world(), [&](World world) {
          at::set_num_threads(1);
          Gpt2 model = make_double();
          const auto optimizer = make_optimizer(kind, model);
          ParallelModel parallel = initialize(model, from.config(), options_on(world, from, model));
          train(parallel, model, *optimizer, 2);
          parallel.reshard(to.config(), options_on(world, to, model), along(*optimizer));
          train(parallel, model, *optimizer, 1);
          parallel.deparallelize(along(*optimizer));
          optimizer->zero_grad();
          step_plainly(model, *optimizer);
          for (const auto& [name, tensor] : in_use(model)) {
            // The order of sums in double, which AdamW's quotients enlarge.
            EXPECT_TRUE(torch::allclose(tensor, expected.at(name), 1e-8, 1e-9)) << name;
          }
          EXPECT_EQ(optimizer->state().count(model->transformer->wpe->weight.unsafeGetTensorImpl()),
                    0u);
          EXPECT_EQ(optimizer->state().size(), plain_optimizer->state().size());
        });
      }
    }
  }
}

// Adagrad has a state of every parameter from its construction on: a whole one where the model was
// not cut yet, and of the tensor that a tied layer registers and nothing computes with.
TEST(Reshard, StatesThatThereAreBeforeAnyStepGoAlong) {
  const auto make = [](const Gpt2& model) {
    // A bias of keys has no gradient but rounding, which a smaller eps would make a step of.
    return std::make_unique<torch::optim::Adagrad>(model->parameters(),
                                                   torch::optim::AdagradOptions(0.1).eps(1e-5));
  };
  Gpt2 plain = make_double();
  const auto plain_optimizer = make(plain);
  for (int step = 0; step < 4; ++step) {
    plain_optimizer->zero_grad();
    step_plainly(plain, *plain_optimizer);
  }
  const auto expected = in_use(plain);
  const GridCase from{"tensor 2", 2}, to{"pipeline 2", 1, 2};
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before ? "made and stepped before initialize" : "made afterwards");
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      Gpt2 model = make_double();
      std::unique_ptr<torch::optim::Adagrad> optimizer;
      if (before) {
        optimizer = make(model);
        step_plainly(model, *optimizer);
        optimizer->zero_grad();
      }
      ParallelModel parallel = initialize(model, from.config(), options_on(world, from, model));
      if (!before) {
        optimizer = make(model);
        train(parallel, model, *optimizer, 1);
      }
      parallel.reshard(to.config(), options_on(world, to, model),
                       ReshardOptions().optimizer(optimizer.get()));
      train(parallel, model, *optimizer, 2);
      parallel.deparallelize(ReshardOptions().optimizer(optimizer.get()));
      optimizer->zero_grad();
      step_plainly(model, *optimizer);
      for (const auto& [name, tensor] : in_use(model)) {
        EXPECT_TRUE(torch::allclose(tensor, expected.at(name), 1e-8, 1e-9)) << name;
      }
    });
  }
}

/// Four layers, and a parameter of the root that the last stage uses.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl() {
    for (int layer = 0; layer < 4; ++layer) layers->push_back(torch::nn::Linear(5, 5));
    register_module("layers", layers);
    temperature = register_parameter("temperature", torch::full({}, 1.5));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x * temperature;
  }
  torch::nn::ModuleList layers;
  torch::Tensor temperature;
};
TORCH_MODULE(Scaled);

/// Its states go to the stage that the plan has it on, which nothing tells but an example or the
/// config; without either the optimizer's step says so, and what to do.
TEST(Reshard, ToStagesThatNothingTellsSaysWhereAParameterIsUsed) {
  const auto loss_of_rows = [](Scaled& model, const torch::Tensor& rows) {
    return model->forward(rows).square().mean();
  };
  const auto make_adamw = [](const Scaled& model) {
    return std::make_unique<torch::optim::AdamW>(model->parameters(),
                                                 torch::optim::AdamWOptions(0.1));
  };
  const torch::Tensor rows = torch::linspace(-1, 1, 30).view({6, 5});
  Scaled plain = test::make_seeded(1, [] { return Scaled(); });
  const auto plain_optimizer = make_adamw(plain);
  for (int step = 0; step < 3; ++step) {
    plain_optimizer->zero_grad();
    loss_of_rows(plain, rows).backward();
    plain_optimizer->step();
  }
  for (const bool planned : {false, true}) {
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      Scaled model = test::make_seeded(1, [] { return Scaled(); });
      const auto optimizer = make_adamw(model);
      InitializeOptions how;
      how.world = world;
      const auto step = [&](const ParallelModel& parallel) {
        optimizer->zero_grad();
        PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(1));
        schedule.forward_backward_step({rows}, [&](const std::vector<torch::Tensor>& micro) {
          return loss_of_rows(model, micro[0]);
        });
        optimizer->step();
      };
      ParallelModel parallel = initialize(
          model, Config::parse(R"({"model_parallelism": {"tensor_parallel_size": 2}})"), how);
      step(parallel);
      Config stages = Config::parse(R"({"model_parallelism": {"pipeline_parallel_size": 2}})");
      if (planned) stages.set("stages.temperature=1");
      parallel.reshard(stages, how, along(*optimizer));
      if (!planned) {
        if (world.rank() > 0) return step(parallel);
        EXPECT_THAT(
            test::error_of([&] { step(parallel); }),
            ::testing::HasSubstr("plan it for the stage that uses it: \"stages\": "
                                 "{\"temperature\": 1}, or give initialize example_inputs"));
        return;
      }
      step(parallel);
      step(parallel);
      for (const auto& parameter : model->named_parameters()) {
        EXPECT_TRUE(torch::allclose(full_tensor(parameter.value()),
                                    plain->named_parameters()[parameter.key()], 1e-4, 1e-6))
            << parameter.key();
      }
    });
  }
}

}  // namespace
}  // namespace oslo::resharding_test
