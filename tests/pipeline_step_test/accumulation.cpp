// Gradient accumulation: num_accumulation_steps of every dialect, at pipeline size 1 and beyond.
#include <gmock/gmock.h>

#include "tests/support/error_of.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

constexpr const char* kAccumulates[] = {
    R"({"model_parallelism": {"tensor_parallel_size": 1}, "num_accumulation_steps": 3})",
    R"({"train": {"num_accumulation_steps": 3}})",
    R"({"parallel": {"pipeline": 1}, "num_accumulation_steps": 3})",
    R"({"train": {"num_accumulation_steps": 3,
        "dist": {"pipeline_parallel_size": 2, "pipeline_num_layers": 2}}})"};

/// 11 rows a replica in 3 micro-batches (4, 4, 3), on 2 replicas: a step is that of all 22 rows on
/// one device, with one reduction over the replicas.
TEST(Accumulation, NumAccumulationStepsOfEveryDialectIsOneStepOfTheWholeBatch) {
  namespace F = torch::nn::functional;
  using pipeline_parity::Tensors;
  for (const char* text : kAccumulates) {
    const Config config = Config::parse(text);
    const int stages = config.values().pipeline_parallel_size;
    run_as_threads(2 * stages, [&](World world) {
      const auto make = [] {
        return torch::nn::Sequential(torch::nn::Linear(3, 5), torch::nn::Tanh(),
                                     torch::nn::Linear(5, 2));
      };
      auto model = make_seeded(4, make), plain = make_seeded(4, make);
      model->to(torch::kDouble);
      plain->to(torch::kDouble);
      const auto x = make_seeded(8, [] { return torch::randn({22, 3}, torch::kDouble); });
      const auto y = make_seeded(9, [] { return torch::randn({22, 2}, torch::kDouble); });
      InitializeOptions how;
      how.world = world;
      const ParallelModel parallel = initialize(model, config, how);
      const MPU& mpu = parallel.mpu();
      torch::optim::AdamW optimizer(model->parameters()), plain_optimizer(plain->parameters());
      PipelineSchedule schedule(parallel);
      EXPECT_EQ(schedule.schedule().micro_batches, 3);
      std::vector<int64_t> rows;
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        plain_optimizer.zero_grad();
        const int replica = mpu.get_data_parallel_rank();
        schedule.forward_backward_step({x.tensor_split(2)[replica], y.tensor_split(2)[replica]},
                                       [&](const Tensors& micro) {
                                         if (step == 2) rows.push_back(micro[0].size(0));
                                         return F::mse_loss(model->forward(micro[0]), micro[1]);
                                       });
        F::mse_loss(plain->forward(x), y).backward();
        pipeline_parity::expect_gradients(*model, *plain);
        optimizer.step();
        plain_optimizer.step();
      }
      parity::expect_weights(*model, *plain);
      EXPECT_THAT(rows, testing::ElementsAre(4, 4, 3));
      EXPECT_EQ(mpu.data_group()->ledger().total("all_reduce").calls, 3) << text;
    });
  }
}

using Ddp = DistributedDataParallel<torch::nn::Linear>;

/// A gradient of two data ranks' model, of what `step` does.
torch::Tensor gradient_of(const char* config, int ranks,
                          const std::function<void(Ddp& ddp, const torch::Tensor& x)>& step) {
  torch::Tensor gradient;
  run_as_threads(ranks, [&](World world) {
    auto model = make_seeded(4, [] { return torch::nn::Linear(3, 2); });
    InitializeOptions how;
    how.world = world;
    const ParallelModel parallel = initialize(model, Config::parse(config), how);
    Ddp ddp(model, parallel.mpu().get_data_parallel_group());
    step(ddp, torch::full({4, 3}, 0.5 + world.rank()));
    if (world.rank() == 0) gradient = model->weight.grad().clone();
  });
  return gradient;
}

/// A loop of DistributedDataParallel does not divide batches, in groups of any size.
TEST(Accumulation, ADdpLoopThatDoesNotDivideIsRefused) {
  const auto whole = [](Ddp& ddp, const torch::Tensor& x) { ddp.forward(x).sum().backward(); };
  for (const int ranks : {1, 2}) {
    for (const char* text :
         {R"({"num_accumulation_steps": 2})", R"({"train": {"num_accumulation_steps": 2}})"}) {
      EXPECT_THAT(test::error_of([&] { gradient_of(text, ranks, whole); }),
                  testing::AllOf(testing::HasSubstr("num_accumulation_steps' = 2"),
                                 testing::HasSubstr("oslo::PipelineSchedule"),
                                 testing::HasSubstr("ddp.no_sync()")));
    }
    // One that divides them by hand is right, and so is an evaluation.
    const auto by_hand = [](Ddp& ddp, const torch::Tensor& x) {
      {
        const torch::NoGradGuard no_grad;
        ddp.forward(x);
      }
      const auto parts = x.chunk(2);
      {
        const auto waits = ddp.no_sync();
        ddp.forward(parts[0]).sum().backward();
      }
      ddp.forward(parts[1]).sum().backward();
    };
    EXPECT_TRUE(torch::equal(gradient_of("{}", ranks, whole),
                             gradient_of(R"({"num_accumulation_steps": 2})", ranks, by_hand)));
  }
}

}  // namespace
}  // namespace oslo::test
