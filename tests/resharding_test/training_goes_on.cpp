// Training goes on in another layout as it would have gone on on one device.
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>

#include <memory>
#include <vector>

#include "tests/resharding_test/known_states.h"
#include "tests/resharding_test/resharding_layouts.h"
#include "tests/resharding_test/training.h"

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

}  // namespace
}  // namespace oslo::resharding_test
