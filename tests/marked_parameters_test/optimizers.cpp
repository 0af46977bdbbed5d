// Every optimizer of LibTorch, made before initialize and after it, where one rank holds all of a
// parameter and others nothing (fewer rows than ranks), with pipeline stages beside it and without.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <map>
#include <set>

#include "tests/marked_parameters_test/libtorch_header.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace torch::optim;  // NOLINT(google-build-using-namespace)
using pipeline_parity::Grid;
using pipeline_parity::Tensors;
using ::testing::HasSubstr;

/// One row, and one column, for all ranks.
struct NarrowImpl : torch::nn::Module {
  NarrowImpl() {
    down = register_module("down", torch::nn::Linear(5, 1));
    up = register_module("up", torch::nn::Linear(1, 5));
    last = register_module("last", torch::nn::Linear(5, 5));
  }
  Tensor loss(const Tensors& micro) {
    const Tensor h = micro[0] + up(torch::tanh(down(micro[0])));
    return torch::mse_loss(last(torch::tanh(h)), micro[1]);
  }
  torch::nn::Linear down{nullptr}, up{nullptr}, last{nullptr};
};
TORCH_MODULE(Narrow);

std::string narrow_config(const Grid& grid) {
  const char* const stages =
      grid.pipeline > 1 ? R"(, "stages": {"down": 0, "up": 0, "last": 1})" : "";
  return c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", grid.tensor,
                  R"(, "pipeline_parallel_size": )", grid.pipeline,
                  R"(}, "plan": {"down": "column", "up": "row", "last": "column"})", stages, "}");
}

using Made = std::unique_ptr<Optimizer>;
using Make = std::function<Made(const Tensors&)>;

template <typename Class, typename Options>
Make maker(const Options& options) {
  return [options](const Tensors& parameters) -> Made {
    return std::make_unique<Class>(parameters, options);
  };
}

/// By the name of the header.
const std::multimap<std::string, Make>& optimizers() {
  static const std::multimap<std::string, Make> all{
      {"adagrad", maker<Adagrad>(AdagradOptions(0.1))},
      {"adagrad", maker<Adagrad>(AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.1))},
      {"adam", maker<Adam>(AdamOptions(1e-2).amsgrad(true).weight_decay(0.01))},
      {"adamw", maker<AdamW>(AdamWOptions(1e-2))},
      {"adamw", maker<AdamW>(AdamWOptions(1e-2).amsgrad(true))},
      {"lbfgs", maker<LBFGS>(LBFGSOptions(0.1))},
      {"rmsprop", maker<RMSprop>(RMSpropOptions(1e-3))},
      {"rmsprop", maker<RMSprop>(RMSpropOptions(1e-3).centered(true).momentum(0.5))},
      {"sgd", maker<SGD>(SGDOptions(0.1))},
      {"sgd", maker<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01))}};
  return all;
}

Tensors narrow_batch(int step) {
  return {placed_values::numbers({4, 5}, step), placed_values::numbers({4, 5}, step + 0.5)};
}

/// Where `refusal` is not empty every rank refuses the optimizer so.
void expect_trains(const Make& make, bool before, const Grid& grid, const std::string& refusal) {
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    const auto net = [] { return Narrow(); };
    Narrow alone = test::make_seeded(3, net), model = test::make_seeded(3, net);
    pipeline_parity::make_double(*alone);
    pipeline_parity::make_double(*model);
    const Made own = make(alone->parameters());
    Made many = before ? make(model->parameters()) : nullptr;
    InitializeOptions how;
    how.world = world;
    const auto parallel = initialize(model, Config::parse(narrow_config(grid)), how);
    for (const Tensor& narrow : {model->down->weight, model->up->weight}) {
      EXPECT_EQ(layout(narrow)->all_on_one_rank(), grid.tensor > 1);
    }
    if (!before) many = make(model->parameters());
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    for (int step = 0; step < 3; ++step) {
      own->zero_grad();
      many->zero_grad();
      const auto forward_backward = [&] {
        const auto loss = [&](const Tensors& micro) { return model->loss(micro); };
        return schedule.forward_backward_step(narrow_batch(step), loss).loss;
      };
      if (!refusal.empty()) {
        EXPECT_THAT(placed_values::error_of([&] { many->step(forward_backward); }),
                    HasSubstr(refusal));
        return;
      }
      alone->loss(narrow_batch(step)).backward();
      own->step();
      forward_backward();
      many->step();
    }
    parity::expect_weights(*model, *alone);
  });
}

TEST(MarkedParameters, EveryOptimizerWhereOneRankHoldsAllOfAParameter) {
  for (const auto& [name, make] : optimizers()) {
    for (const bool before : {true, false}) {
      for (const Grid& grid : {Grid{1, 2, 1}, Grid{1, 3, 1}, Grid{1, 1, 2}, Grid{1, 2, 2}}) {
        SCOPED_TRACE(name + (before ? " before " : " after ") + grid.name());
        // It flattens parameters by the sizes of parts, and joins the gradients of all stages.
        expect_trains(make, before, grid, name == "lbfgs" ? "torch::optim::LBFGS" : "");
      }
    }
  }
}

TEST(MarkedParameters, ThoseOptimizersAreAllThatLibTorchHas) {
  std::set<std::string> known;
  for (const auto& [name, make] : optimizers()) known.insert(name);
  const std::set<std::string> no_optimizers{"optimizer", "serialize"};
  for (const std::string& name :
       test::found_in_header("optim.h", R"(#include <torch/optim/(\w+)\.h>)")) {
    if (no_optimizers.count(name) > 0) continue;
    EXPECT_EQ(known.erase(name), 1) << name;
  }
  EXPECT_THAT(known, ::testing::IsEmpty());
}

}  // namespace
}  // namespace oslo
