// A budget of memory where ranks share a model.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "oslo_cpp/oslo.h"
#include "tests/recomputation_test/gpt2.h"
#include "tests/support/initialized.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using parity::make_seeded;
using torch::Tensor;

/// What a rank shows after some steps.
struct Shown {
  std::vector<double> losses;
  std::string kept;  ///< names
  PlanMemory memory;
  int64_t agreed = 0;  ///< all-reduces for decisions
};

struct Grid {
  int data = 1, tensor = 1, pipeline = 1;
};

std::string config_of(const Grid& grid, const std::string& recomputation) {
  return c10::str(R"({"model_parallelism": {"tensor_parallel_size": )", grid.tensor,
                  R"(, "pipeline_parallel_size": )", grid.pipeline, "}", recomputation, "}");
}

std::map<int, Shown> train(const Grid& grid, const std::string& recomputation) {
  std::map<int, Shown> shown;
  std::mutex mutex;
  run_as_threads(grid.data * grid.tensor * grid.pipeline, [&](World world) {
    at::set_num_threads(1);
    models::GPT2Options options = small_gpt2(6);
    options.hidden = 24;
    auto model = make_seeded(3, [&] { return models::GPT2(options); });
    const ParallelModel parallel =
        initialize(model, Config::parse(config_of(grid, recomputation)), in(world));
    torch::optim::AdamW optimizer(model->parameters(), 1e-3);
    const Tensor tokens = torch::arange(12 * 15).remainder(19).view({12, 15});
    const int row = 12 / grid.data * parallel.mpu().rank("data");
    const Tensor mine = tokens.narrow(0, row, 12 / grid.data);
    Shown rank;
    std::optional<DistributedDataParallel<models::GPT2>> ddp;
    std::optional<PipelineSchedule> schedule;
    if (grid.pipeline > 1) {
      schedule.emplace(parallel, PipelineOptions().num_microbatches(4));
    } else {
      ddp.emplace(model, parallel.mpu().data_group());
    }
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      Tensor loss;
      if (schedule) {
        const auto loss_of = [&](const std::vector<Tensor>& micro) {
          return loss_of_tokens(model->forward(micro[0]), micro[0]);
        };
        loss = schedule->forward_backward_step({mine}, loss_of).loss;
      } else {
        loss = loss_of_tokens(ddp->forward(mine), mine);
        loss.backward();
      }
      optimizer.step();
      rank.losses.push_back(loss.defined() ? full_tensor(loss.detach()).item<double>() : 0);
    }
    const Plan plan = parallel.plan();
    rank.memory = plan.memory;
    for (const PlanSegment& each : plan.recomputed) {
      if (each.kept) rank.kept += each.layers + " ";
    }
    for (const PlanTraffic& line : plan.traffic) {
      if (line.entry.rule == "memory budget") rank.agreed += line.entry.traffic.calls;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    shown[world.rank()] = rank;
  });
  return shown;
}

std::string budget(int64_t bytes) {
  return c10::str(R"(, "activation_checkpoint": {"memory": )", bytes, "}");
}

class BudgetOnRanks : public testing::TestWithParam<Grid> {};

TEST_P(BudgetOnRanks, IsDecidedAlikeWithTheNumbersOfThePlainModel) {
  const Grid grid = GetParam();
  const auto plain = train(grid, "");
  const auto large = train(grid, budget(int64_t{1} << 40));
  int64_t most = 0;
  for (const auto& [rank, shown] : large) most = std::max(most, shown.memory.peak);
  ASSERT_GT(most, 0);
  const auto middle = train(grid, budget(most * 8 / 10));
  size_t fewer = 0;
  for (const auto& [rank, shown] : middle) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(large.at(rank).kept, "h.0 h.1 h.2 h.3 h.4 h.5 ");
    // The stages of a pipeline need different amounts.
    fewer += shown.kept != large.at(rank).kept ? 1 : 0;
    EXPECT_NE(shown.kept, "");
    EXPECT_LE(shown.memory.peak, most * 8 / 10);
    if (grid.tensor > 1) {
      // Ranks of a tensor group are neighbours.
      EXPECT_EQ(shown.kept, middle.at(rank / grid.tensor * grid.tensor).kept);
      EXPECT_EQ(shown.agreed, 2);
    } else {
      EXPECT_EQ(shown.agreed, 0);
    }
    for (size_t step = 0; step < shown.losses.size(); ++step) {
      EXPECT_NEAR(shown.losses[step], plain.at(rank).losses[step], 2e-5) << step;
    }
  }
  if (grid.pipeline > 1) {
    EXPECT_GT(fewer, 0);
  } else {
    EXPECT_EQ(fewer, middle.size());
  }
}

INSTANTIATE_TEST_SUITE_P(, BudgetOnRanks,
                         testing::Values(Grid{1, 2, 1}, Grid{1, 3, 1}, Grid{2, 1, 1}, Grid{2, 2, 1},
                                         Grid{1, 1, 2}, Grid{1, 2, 2}),
                         [](const auto& info) {
                           return c10::str("dp", info.param.data, "tp", info.param.tensor, "pp",
                                           info.param.pipeline);
                         });

}  // namespace
}  // namespace oslo::test
