// deparallelize and reshard: what becomes of values, gradients, the tree and optimizers, without a
// file.
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

#include "tests/resharding_test/resharding_layouts.h"
#include "tests/resharding_test/training.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/temporary_directory.h"

namespace oslo::resharding_test {
namespace {

using test::error_of;
using ::testing::HasSubstr;

/// Gradients of `model`, which is ordinary, beside those of one that never was anything else.
void expect_gradients(const Gpt2& model, const Gpt2& plain) {
  const auto expected = in_use(plain);
  for (const auto& [name, tensor] : in_use(model)) {
    ASSERT_TRUE(tensor.grad().defined()) << name;
    EXPECT_EQ(layout(tensor.grad()), nullptr) << name;
    // Sums of some hundred floats in another order.
    EXPECT_TRUE(torch::allclose(tensor.grad(), expected.at(name).grad(), 1e-4, 1e-6)) << name;
  }
}

TEST(Deparallelize, LeavesAnOrdinaryModelWithItsGradients) {
  for (const GridCase& grid : grid_cases()) {
    SCOPED_TRACE(grid.name);
    Gpt2 plain = make_gpt2(1);
    torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
    loss_of(plain, tokens()).backward();
    run_as_threads(grid.world(), [&](World world) {
      at::set_num_threads(1);
      Gpt2 model = make_gpt2(1);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      std::map<std::string, const torch::nn::Module*> modules;
      for (const auto& item : model->named_modules()) modules[item.key()] = item.value().get();
      std::map<std::string, const c10::TensorImpl*> tensors;
      for (const auto& item : model->named_parameters()) {
        tensors[item.key()] = item.value().unsafeGetTensorImpl();
      }
      ParallelModel parallel = initialize(model, grid.config(), options_on(world, grid, model));
      backward(parallel, model);
      parallel.deparallelize();

      test::expect_untouched(model);
      for (const auto& item : model->named_modules()) {
        EXPECT_EQ(item.value().get(), modules[item.key()]) << item.key();
      }
      for (const auto& item : model->named_parameters()) {
        EXPECT_EQ(item.value().unsafeGetTensorImpl(), tensors[item.key()]) << item.key();
        EXPECT_TRUE(item.value().requires_grad() && item.value().is_leaf()) << item.key();
      }
      expect_values(model, make_gpt2(1));
      expect_gradients(model, plain);

      // It computes what one that was never cut does, bit for bit, and communicates nothing.
      Gpt2 fresh = make_gpt2(1);
      torch::optim::SGD fresh_optimizer(fresh->parameters(), 0.1);
      optimizer.zero_grad();
      parallel.count([&] { step_plainly(model, optimizer); });
      EXPECT_TRUE(parallel.plan().traffic.empty());
      step_plainly(fresh, fresh_optimizer);
      expect_values(model, fresh);
      EXPECT_TRUE(model->lm_head->weight.is_same(model->transformer->wte->weight));
    });
  }
}

/// Set by the program and not by a backward, on a table that embedding and head share, whose copies
/// lie on two stages.
TEST(Deparallelize, GradientsThatWereSetByHandComeBackWhole) {
  using Made = std::function<torch::Tensor(const torch::Tensor& parameter)>;
  const std::map<std::string, Made> ways = {
      {"ones_like", [](const torch::Tensor& p) { return torch::ones_like(p); }},
      {"of the values", [](const torch::Tensor& p) { return p.detach() * 0.5; }},
      {"a copy", [](const torch::Tensor& p) { return p.detach().clone(); }},
      {"full_like", [](const torch::Tensor& p) { return torch::full_like(p, 0.25); }},
      {"zeros and added to", [](const torch::Tensor& p) {
         torch::Tensor gradient = torch::zeros_like(p);
         return gradient.add_(p.detach(), 2.0);
       }}};
  for (const GridCase& grid : grid_cases()) {
    for (const auto& [how, make] : ways) {
      SCOPED_TRACE(grid.name + ", " + how);
      const Gpt2 plain = make_gpt2(1);
      for (const auto& [name, tensor] : in_use(plain)) {
        torch::Tensor parameter = tensor;
        parameter.mutable_grad() = make(parameter);
      }
      on_grid(grid, 1, [&, &make = make](ParallelModel& parallel, Gpt2& model) {
        {
          const torch::NoGradGuard no_grad;
          for (torch::Tensor& parameter : model->parameters()) {
            parameter.mutable_grad() = make(parameter);
          }
        }
        parallel.deparallelize();
        expect_gradients(model, plain);
      });
    }
  }
}

TEST(Deparallelize, GradientsThatAreNoPartsAreRefused) {
  on_grid({"tensor 2", 2}, 1, [&](ParallelModel& parallel, Gpt2& model) {
    torch::Tensor table = model->transformer->wte->weight;
    table.mutable_grad() = torch::ones({53, 20});
    EXPECT_THAT(error_of([&] { parallel.deparallelize(); }),
                HasSubstr("the gradient of transformer.wte.weight is an ordinary tensor, and no "
                          "part of the whole gradient; make it of the parameter"));
    table.mutable_grad() = (table.detach() * 0.5).slice(1, 0, 7);
    EXPECT_THAT(error_of([&] { parallel.deparallelize(); }),
                HasSubstr("transformer.wte.weight is a value of another shape"));
    table.mutable_grad().reset();
    parallel.deparallelize();
    expect_values(model, make_gpt2(1));
  });
}

TEST(Deparallelize, TheHandleGoesOnAsOfAModelThatNothingCuts) {
  const test::TemporaryDirectory folder;
  on_grid({"tensor 2 x pipeline 2", 2, 2}, 1, [&](ParallelModel& parallel, Gpt2&) {
    parallel.deparallelize();
    parallel.deparallelize();
    parallel.save_parallelized(folder / "ckpt");
  });
  const Gpt2 model = make_gpt2(2);
  load_state(*model, std::string(folder / "ckpt"));
  expect_values(model, make_gpt2(1));
}

TEST(Deparallelize, RefusesPartsThatOthersHold) {
  on_grid({"tensor 2", 2}, 1, [&](ParallelModel& parallel, Gpt2& model) {
    torch::optim::AdamW optimizer(model->parameters());
    torch::Tensor loss = loss_of(model, tokens());
    EXPECT_THAT(error_of([&] { parallel.deparallelize(); }),
                HasSubstr("autograd graph that is still alive"));
    loss.backward();
    loss = torch::Tensor();
    optimizer.step();
    EXPECT_THAT(error_of([&] { parallel.deparallelize(); }),
                HasSubstr("as the states of an optimizer that has stepped: take them along with "
                          "ReshardOptions().optimizer(&optimizer)"));
    EXPECT_TRUE(is_placed(model->transformer->wte->weight));
    optimizer.state().clear();
    parallel.deparallelize();
    EXPECT_FALSE(is_placed(model->transformer->wte->weight));
  });
}

TEST(Reshard, AnyLayoutIntoAnyOtherOfAsManyRanks) {
  const std::vector<std::vector<GridCase>> worlds = {
      {{"data 2", 1, 1, 2}, {"tensor 2", 2}, {"pipeline 2", 1, 2}},
      {{"tensor 4", 4}, {"tensor 2 x pipeline 2", 2, 2}, grid_cases().back()}};
  Gpt2 plain = make_gpt2(1);
  loss_of(plain, tokens()).backward();
  for (const std::vector<GridCase>& grids : worlds) {
    for (const GridCase& from : grids) {
      for (const GridCase& to : grids) {
        SCOPED_TRACE(from.name + " to " + to.name);
        on_grid(from, 1, [&](ParallelModel& parallel, Gpt2& model) {
          const ParallelModel handle = parallel;
          backward(parallel, model);
          parallel.reshard(to.config(), options_on(parallel.mpu().world(), to, model));
          expect_values(model, plain);
          // As one that was initialized so, the gradients it had included.
          EXPECT_EQ(handle.mpu().size("tensor"), parallel.mpu().size("tensor"));
          EXPECT_EQ(parallel.mpu().size("pipeline"), to.pipeline);
          EXPECT_EQ(is_placed(model->transformer->wte->weight), to.data == 1);
          for (torch::Tensor& parameter : model->parameters()) {
            if (parameter.grad().defined()) parameter.mutable_grad().mul_(0.5);
          }
          backward(parallel, model);
          parallel.deparallelize();
          for (auto& [_, parameter] : in_use(model)) parameter.mutable_grad().div_(1.5);
          expect_gradients(model, plain);
        });
      }
    }
  }
}

TEST(Reshard, AConfigThatDoesNotFitLeavesTheModelAsItWas) {
  on_grid({"tensor 2", 2}, 1, [&](ParallelModel& parallel, Gpt2& model) {
    EXPECT_THAT(error_of([&] {
                  parallel.reshard(GridCase{"tensor 3", 3}.config());
                }),
                HasSubstr("3"));
    EXPECT_THAT(error_of([&] {
                  parallel.reshard(Config::parse(R"({"model_parallelism": {"enable": false}})"));
                }),
                HasSubstr("use deparallelize()"));
    EXPECT_TRUE(is_placed(model->transformer->wte->weight));
    expect_values(model, make_gpt2(1));
  });
}

}  // namespace
}  // namespace oslo::resharding_test
