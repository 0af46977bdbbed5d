// deparallelize and reshard with an optimizer that has stepped: its states go where their
// parameters go.
#include <gmock/gmock.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/resharding_test/known_states.h"
#include "tests/resharding_test/resharding_layouts.h"
#include "tests/resharding_test/training.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/temporary_directory.h"

namespace oslo::resharding_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using torch::optim::Optimizer;

std::vector<const c10::TensorImpl*> stepped_by(const Optimizer& optimizer) {
  std::vector<const c10::TensorImpl*> all;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& p : group.params()) all.push_back(p.unsafeGetTensorImpl());
  }
  return all;
}

ReshardOptions along(Optimizer& optimizer) {
  return ReshardOptions().optimizer(&optimizer);
}

/// A model over a grid, and its optimizer, which begin with the known weights and states.
class InMemoryStates : public ::testing::Test {
 protected:
  using Body = std::function<void(ParallelModel&, Gpt2&, Optimizer&)>;

  void on_known(Kind kind, const GridCase& grid, const Body& body) {
    if (saved_.insert(kind).second) save_known(kind, folder(kind));
    on_grid(grid, 2, [&](ParallelModel& parallel, Gpt2& model) {
      const auto optimizer = make_optimizer(kind, model);
      parallel.from_parallelized(folder(kind), with_states(*optimizer));
      body(parallel, model, *optimizer);
    });
  }

  /// What AdamW over two tensor ranks is refused with, the same on both; it and the model are as
  /// they were.
  std::string refusal(const Body& body) {
    const Known known(Kind::adamw);
    std::vector<std::string> errors(2);
    on_known(Kind::adamw, {"tensor 2", 2},
             [&](ParallelModel& parallel, Gpt2& model, Optimizer& optimizer) {
               const int rank = parallel.mpu().world().rank();
               errors[rank] = test::error_of([&] { body(parallel, model, optimizer); });
               EXPECT_TRUE(is_placed(model->transformer->wte->weight));
               expect_values(model, known.model);
               expect_states(optimizer, model, known);
             });
    EXPECT_THAT(errors, Each(errors.front()));
    return errors.front();
  }

 private:
  std::string folder(Kind kind) const { return folder_ / (kind == Kind::sgd ? "sgd" : "adamw"); }

  const test::TemporaryDirectory folder_;
  std::set<Kind> saved_;
};

TEST_F(InMemoryStates, AnyLayoutIntoAnyOtherAndBack) {
  for (const Kind kind : kKinds) {
    const Known known(kind);
    for (const std::vector<GridCase>& grids : layouts_by_world()) {
      for (const GridCase& from : grids) {
        for (const GridCase& to : grids) {
          SCOPED_TRACE(from.name + " to " + to.name);
          on_known(kind, from, [&](ParallelModel& parallel, Gpt2& model, Optimizer& optimizer) {
            const World world = parallel.mpu().world();
            const auto stepped = stepped_by(optimizer);
            parallel.reshard(to.config(), options_on(world, to, model), along(optimizer));
            expect_values(model, known.model);
            expect_states(optimizer, model, known);

            parallel.deparallelize(along(optimizer));
            test::expect_untouched(model);
            expect_values(model, known.model);
            expect_states(optimizer, model, known);

            parallel.reshard(from.config(), options_on(world, from, model), along(optimizer));
            expect_values(model, known.model);
            expect_states(optimizer, model, known);
            EXPECT_EQ(stepped_by(optimizer), stepped);
            EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 1e-3);
          });
        }
      }
    }
  }
}

// Each part of a state is gathered once, as its parameter is, and nothing of what is whole.
TEST_F(InMemoryStates, GathersEachPartOnce) {
  on_known(Kind::adamw, {"tensor 2", 2},
           [&](ParallelModel& parallel, Gpt2& model, Optimizer& optimizer) {
             Traffic expected;
             for (const NamedTensor& parameter : ModelView(*model).in_use()) {
               const LayoutPtr lies = layout(parameter.tensor);
               if (!lies) continue;
               const bool has = optimizer.state().count(parameter.tensor.unsafeGetTensorImpl()) > 0;
               const int64_t tensors = has ? 4 : 1, own = parameter.tensor.numel();
               const int64_t others =
                   c10::multiply_integers(lies->global_sizes(parameter.tensor.sizes())) - own;
               expected += {tensors, tensors * others, tensors * others * 4};
             }
             const torch::Tensor unused = *model->lm_head->named_parameters().find("weight");
             if (const LayoutPtr lies = layout(unused)) {
               const int64_t others =
                   c10::multiply_integers(lies->global_sizes(unused.sizes())) - unused.numel();
               expected += {1, others, others * 4};
             }
             parallel.count([&] { parallel.deparallelize(along(optimizer)); });
             Traffic gathered;
             for (const PlanTraffic& line : parallel.plan().traffic) {
               if (line.entry.rule == "full_tensor") gathered += line.entry.traffic;
             }
             EXPECT_EQ(gathered.calls, expected.calls);
             EXPECT_EQ(gathered.bytes, expected.bytes);
             EXPECT_EQ(gathered.elements, expected.elements);
           });
}

TEST_F(InMemoryStates, OfOtherTensorsStayWhatTheyAre) {
  on_known(Kind::sgd, {"tensor 2", 2},
           [&](ParallelModel& parallel, Gpt2& model, Optimizer& optimizer) {
             torch::Tensor other = torch::ones({3}, torch::requires_grad());
             optimizer.add_param_group(torch::optim::OptimizerParamGroup({other}));
             auto own = std::make_unique<torch::optim::SGDParamState>();
             const auto* const before = own.get();
             optimizer.state()[other.unsafeGetTensorImpl()] = std::move(own);
             parallel.reshard(GridCase{"pipeline 2", 1, 2}.config(), along(optimizer));
             EXPECT_EQ(optimizer.state().at(other.unsafeGetTensorImpl()).get(), before);
             optimizer.state().erase(other.unsafeGetTensorImpl());
             expect_states(optimizer, model, Known(Kind::sgd));
           });
}

TEST(Reshard, TakesTheStatesOfSeveralOptimizers) {
  on_grid({"tensor 2", 2}, 1, [&](ParallelModel& parallel, Gpt2& model) {
    std::vector<torch::Tensor> matrices, others;
    for (const torch::Tensor& p : model->parameters()) {
      (p.dim() == 2 ? matrices : others).push_back(p);
    }
    torch::optim::AdamW first(matrices);
    torch::optim::SGD second(others, torch::optim::SGDOptions(0.1).momentum(0.9));
    backward(parallel, model);
    first.step();
    second.step();
    const auto gathered = [&] {
      std::vector<torch::Tensor> all;
      for (const auto& [name, parameter] : in_use(model)) {
        Optimizer& its = parameter.dim() == 2 ? static_cast<Optimizer&>(first) : second;
        const auto& state = *its.state().at(parameter.unsafeGetTensorImpl());
        for (const torch::Tensor& part : parts_of(state).second) {
          if (part.defined()) all.push_back(full_tensor(part).clone());
        }
      }
      return all;
    };
    const std::vector<torch::Tensor> before = gathered();
    const Config to = GridCase{"data 2", 1, 1, 2}.config();
    EXPECT_THAT(test::error_of([&] { parallel.reshard(to, along(first)); }),
                HasSubstr("something beside its gradient has a part of"));
    parallel.reshard(to, along(first).optimizer(&second).optimizer(&second));
    EXPECT_FALSE(is_placed(model->transformer->wte->weight));
    const std::vector<torch::Tensor> after = gathered();
    ASSERT_EQ(after.size(), before.size());
    for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(torch::equal(after[i], before[i])) << i;
  });
}

TEST_F(InMemoryStates, AreRefusedWithoutTheirOptimizer) {
  const auto says = HasSubstr(
      "as the states of an optimizer that has stepped: take them along with "
      "ReshardOptions().optimizer(&optimizer)");
  const Config to = GridCase{"pipeline 2", 1, 2}.config();
  EXPECT_THAT(refusal([&](ParallelModel& parallel, Gpt2&, Optimizer&) { parallel.reshard(to); }),
              says);
  EXPECT_THAT(
      refusal([&](ParallelModel& parallel, Gpt2&, Optimizer&) { parallel.deparallelize(); }), says);
  // With it, where somebody else has a part.
  EXPECT_THAT(refusal([&](ParallelModel& parallel, Gpt2& model, Optimizer& optimizer) {
                const torch::NoGradGuard no_grad;
                const torch::Tensor average = torch::zeros_like(model->transformer->wte->weight);
                parallel.deparallelize(along(optimizer));
              }),
              HasSubstr("something beside its gradient has a part of"));
}

TEST_F(InMemoryStates, AreRefusedWhereRanksOrOptimizersDoNotFit) {
  const Config to = GridCase{"pipeline 2", 1, 2}.config();
  EXPECT_THAT(
      refusal([&](ParallelModel& parallel, Gpt2&, Optimizer& optimizer) {
        const bool gives = parallel.mpu().world().rank() == 0;
        parallel.reshard(to, ReshardOptions().optimizer(gives ? &optimizer : nullptr));
      }),
      HasSubstr("ReshardOptions differs between ranks: rank 0 has optimizers: 1, rank 1 has "
                "optimizers: 0; give the same optimizers on every rank"));
  EXPECT_THAT(refusal([&](ParallelModel& parallel, Gpt2& model, Optimizer&) {
                torch::optim::LBFGS other(model->parameters());
                parallel.reshard(to, along(other));
              }),
              HasSubstr("the state of LBFGS cannot be saved or resharded"));
  EXPECT_THAT(refusal([&](ParallelModel& parallel, Gpt2&, Optimizer&) {
                torch::optim::SGD other(make_gpt2(3)->parameters(), 0.1);
                parallel.deparallelize(along(other));
              }),
              HasSubstr("steps no parameter of this model"));
  EXPECT_THAT(refusal([&](ParallelModel& parallel, Gpt2&, Optimizer& optimizer) {
                auto& options = optimizer.param_groups()[0].options();
                if (parallel.mpu().world().rank() == 1) options.set_lr(0.5);
                parallel.reshard(to, along(optimizer));
              }),
              HasSubstr("the optimizer differs between ranks"));
  EXPECT_THAT(refusal([&](ParallelModel& parallel, Gpt2&, Optimizer& optimizer) {
                auto& state =
                    static_cast<torch::optim::AdamWParamState&>(*optimizer.state().begin()->second);
                const int64_t steps = state.step();
                if (parallel.mpu().world().rank() == 1) state.step(steps + 1);
                try {
                  parallel.reshard(to, along(optimizer));
                } catch (const Error&) {
                  state.step(steps);
                  throw;
                }
              }),
              HasSubstr("the state of the optimizer differs between ranks"));
  EXPECT_THAT(refusal([&](ParallelModel& parallel, Gpt2&, Optimizer& optimizer) {
                parallel.reshard(GridCase{"tensor 3", 3}.config(), along(optimizer));
              }),
              HasSubstr("3"));
}

TEST_F(InMemoryStates, AreWholeWhereTheConfigDoesNotFitTheModel) {
  const Known known(Kind::adamw);
  GridCase wrong{"tensor 2", 2};
  wrong.plan = {{"transformer.nothing", "row"}};
  on_known(Kind::adamw, {"tensor 2", 2},
           [&](ParallelModel& parallel, Gpt2& model, Optimizer& optimizer) {
             EXPECT_THAT(
                 test::error_of([&] { parallel.reshard(wrong.config(), along(optimizer)); }),
                 HasSubstr("transformer.nothing"));
             test::expect_untouched(model);
             expect_values(model, known.model);
             expect_states(optimizer, model, known);
             parallel.reshard(GridCase{"pipeline 2", 1, 2}.config(), along(optimizer));
             expect_states(optimizer, model, known);
           });
}

}  // namespace
}  // namespace oslo::resharding_test
