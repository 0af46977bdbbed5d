// One step of two models that were initialized one by one: an encoder and a head, a generator and a
// critic.
#include <gmock/gmock.h>

#include <utility>

#include "tests/support/error_of.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::Grid;
using pipeline_parity::Tensors;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using torch::Tensor;

/// Its first weight is used again behind its last layer, as a tied head is: on another stage.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : in(register_module("in", torch::nn::Linear(3, 5))),
        one(register_module("one", torch::nn::Linear(5, 7))),
        two(register_module("two", torch::nn::Linear(7, 5))),
        out(register_module("out", torch::nn::Linear(5, 5))) {}
  Tensor forward(const Tensor& x) {
    const Tensor hidden = two(torch::tanh(one(torch::tanh(in(x)))));
    return torch::tanh(out(hidden)).matmul(in->weight);
  }
  torch::nn::Linear in, one, two, out;
};
TORCH_MODULE(Tied);

/// The models of one program: `back` takes what `front` gives, `idle` is there for other steps.
struct Models {
  Tied front{nullptr}, back{nullptr}, idle{nullptr};  // ranks that are threads draw in turn

  Models() {
    uint64_t seed = 3;
    for (Tied* each : {&front, &back, &idle}) {
      *each = make_seeded(seed++, [] { return Tied(); });
      pipeline_parity::make_double(**each);
    }
  }
  std::vector<Tensor> parameters() const {
    std::vector<Tensor> all;
    for (const Tied& each : {front, back, idle}) {
      for (const Tensor& parameter : each->parameters()) all.push_back(parameter);
    }
    return all;
  }
  std::vector<ParallelModel> initialize(const World& world, const std::string& config) const {
    std::vector<ParallelModel> parallel;
    for (const Tied& each : {front, back, idle}) {
      InitializeOptions how;
      how.world = world;
      parallel.push_back(oslo::initialize(each, Config::parse(config), how));
    }
    return parallel;
  }
  Tensor loss(const Tensors& micro) {
    return torch::mse_loss(back->forward(front->forward(micro[0])), micro[1]);
  }
};

Tensors batch_of(int step) {
  return make_seeded(20 + step, [] {
    return Tensors{torch::randn({22, 3}, torch::kDouble), torch::randn({22, 3}, torch::kDouble)};
  });
}

/// A replica's rows.
Tensors part_of(const Tensors& batch, const MPU& mpu) {
  Tensors part;
  for (const Tensor& each : batch) {
    part.push_back(
        each.tensor_split(mpu.get_data_parallel_world_size())[mpu.get_data_parallel_rank()]);
  }
  return part;
}

/// Two optimizer's steps of two batches each, whose gradients add up, of a schedule of the models
/// in `order` (0: front, 1: back, 2: idle), against plain LibTorch.
void expect_as_alone(const Grid& grid, const char* kind, const std::vector<int64_t>& order) {
  // Before a rank draws anything else: they share the program's generator.
  const std::vector<Tensors> batches = {batch_of(0), batch_of(1), batch_of(2), batch_of(3)};
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    SCOPED_TRACE(c10::str(grid.name(), ", ", kind, ", of models ", c10::IntArrayRef(order)));
    Models plain, models;
    std::string config = pipeline_parity::config_of(grid, kind);
    if (pipeline_parity::chunks_of(kind, 0) > 1) {  // more stages than layers
      config.insert(config.size() - 1, R"(, "stages": {"in": 0, "out": 2})");
    }
    const auto parallel = models.initialize(world, config);
    const MPU& mpu = parallel[order.front()].mpu();
    std::vector<ParallelModel> of_step;
    for (const int64_t i : order) of_step.push_back(parallel[i]);
    PipelineSchedule schedule(of_step, PipelineOptions().num_microbatches(4).kind(kind));
    torch::optim::AdamW optimizer(models.parameters()), plain_optimizer(plain.parameters());
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      plain_optimizer.zero_grad();
      for (const int pass : {0, 1}) {
        const Tensors& batch = batches[2 * step + pass];
        schedule.forward_backward_step(part_of(batch, mpu),
                                       [&](const Tensors& micro) { return models.loss(micro); });
        plain.loss(batch).backward();
      }
      pipeline_parity::expect_gradients(*models.front, *plain.front);
      pipeline_parity::expect_gradients(*models.back, *plain.back);
      pipeline_parity::expect_gradients(*models.idle, *plain.idle);
      optimizer.step();
      plain_optimizer.step();
    }
    parity::expect_weights(*models.front, *plain.front);
    parity::expect_weights(*models.back, *plain.back);
    parity::expect_weights(*models.idle, *plain.idle);
    // One average a pass, of all of them.
    EXPECT_EQ(mpu.data_group()->ledger().total("all_reduce").calls, grid.data > 1 ? 4 : 0);
  });
}

TEST(PipelineScheduleOfSeveralModels, TrainsAllOfThemAsPlainLibTorchDoes) {
  for (const Grid& grid : {Grid{2, 1, 1}, Grid{1, 1, 2}, Grid{2, 1, 2}, Grid{2, 2, 1}}) {
    for (const std::vector<int64_t>& order : {std::vector<int64_t>{0, 1}, {1, 0, 2}}) {
      expect_as_alone(grid, "1f1b", order);
    }
  }
}

TEST(PipelineScheduleOfSeveralModels, TakesEveryKind) {
  for (const char* kind : {"naive", "gpipe", "zero_bubble", "zbv", "interleaved", "dualpipev"}) {
    expect_as_alone({1, 1, 2}, kind, {1, 0});
  }
}

/// Each model's tied weight on both stages of two, as the example of one model alone cannot show.
std::string planned_config(const Grid& grid, const char* kind) {
  std::string config = pipeline_parity::config_of(grid, kind);
  if (grid.pipeline > 1)
    config.insert(config.size() - 1,
                  R"(, "stages": {"in": [0, 1], "one": [0, 1], "two": [0, 1], "out": 1})");
  return config;
}

/// What each rank hears of a step of `loss`, by a schedule of the head alone.
std::vector<std::string> heard(const Grid& grid,
                               const std::function<Tensor(Models&, const Tensors&)>& loss,
                               const char* kind = "1f1b") {
  std::vector<std::string> errors(grid.size());
  const Tensors batch = batch_of(0);
  run_as_threads(grid.size(), [&](World world) {
    Models models;
    const auto parallel = models.initialize(world, planned_config(grid, kind));
    PipelineSchedule schedule(parallel[1], PipelineOptions().num_microbatches(4).kind(kind));
    try {
      schedule.forward_backward_step(part_of(batch, parallel[1].mpu()),
                                     [&](const Tensors& micro) { return loss(models, micro); });
    } catch (const Error& error) {
      errors[world.rank()] = error.what();
    }
  });
  return errors;
}

TEST(PipelineScheduleOfSeveralModels, AModelThatItIsNotOfIsRefusedOnEveryRank) {
  const auto both = [](Models& models, const Tensors& micro) { return models.loss(micro); };
  for (const Grid& grid : {Grid{2, 1, 1}, Grid{2, 2, 1}, Grid{1, 1, 2}, Grid{2, 1, 2}}) {
    SCOPED_TRACE(grid.name());
    EXPECT_THAT(heard(grid, both), Each(AllOf(HasSubstr("a parameter of another model"),
                                              HasSubstr("PipelineSchedule({parallel, other})"))));
  }
}

/// What gets no gradient in the step has nothing to be averaged.
TEST(PipelineScheduleOfSeveralModels, AModelThatIsOnlyLookedAtNeedsNoSchedule) {
  const auto detached = [](Models& models, const Tensors& micro) {
    return torch::mse_loss(models.back->forward(models.front->forward(micro[0]).detach()),
                           micro[1]);
  };
  const auto frozen = [](Models& models, const Tensors& micro) {
    for (Tensor& each : models.front->parameters()) each.requires_grad_(false);
    return models.loss(micro);
  };
  for (const Grid& grid : {Grid{2, 1, 1}, Grid{2, 2, 1}, Grid{1, 1, 2}, Grid{2, 1, 2}}) {
    SCOPED_TRACE(grid.name());
    EXPECT_THAT(heard(grid, detached), Each(std::string()));
    EXPECT_THAT(heard(grid, frozen), Each(std::string()));
  }
}

TEST(PipelineScheduleOfSeveralModels, TheSameOneTwiceAndModelsOverOtherRanksAreRefused) {
  run_as_threads(2, [&](World world) {
    const auto schedule_of = [&](const Grid& first, const Grid& second, bool twice) {
      Models models;
      std::vector<ParallelModel> parallel;
      for (const auto& [model, grid] : {std::pair{models.front, first}, {models.back, second}}) {
        InitializeOptions how;
        how.world = world;
        parallel.push_back(initialize(model, Config::parse(pipeline_parity::config_of(grid)), how));
      }
      if (twice) parallel[1] = parallel[0];
      return error_of([&] { PipelineSchedule schedule(parallel); });
    };
    EXPECT_THAT(schedule_of({2, 1, 1}, {2, 1, 1}, true), HasSubstr("are the same one"));
    EXPECT_THAT(schedule_of({2, 1, 1}, {1, 2, 1}, false),
                HasSubstr("its model 1 is over data ranks"));
    EXPECT_THAT(error_of([] { PipelineSchedule schedule(std::vector<ParallelModel>{}); }),
                HasSubstr("was given no model"));
  });
}

}  // namespace
}  // namespace oslo::test
