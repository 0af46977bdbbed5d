// Mistakes of a set-up that would train garbage: ranks of one model with generators of different
// states are refused by initialize; OSLO_CHECK=1, and verify, find ranks that were given different
// batches, and name the operator.
#include <gmock/gmock.h>

#include <ATen/CPUGeneratorImpl.h>

#include <cstdlib>
#include <filesystem>

#include "mpu/group/rank_check.h"
#include "oslo_cpp/initialize/agreement.h"
#include "oslo_cpp/step/check_step.h"
#include "tests/models/small.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/tool_process.h"

namespace oslo {
namespace {

using models::Mlp;
using parity::make_seeded;
using parity::tensor_parallel;
using test::errors_of;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

TEST(Generators, OfTheRanksOfOneModelHaveOneState) {
  const auto refused = [](const std::function<uint64_t(int)>& seed_of) {
    return errors_of(4, [&](World world) {
      const RankGrid grid = MpuOptions().tensor_parallel_size(2).grid(4);  // {0, 1}, {2, 3}
      agree_on_model(world, grid, ModelView({}, {}, {}),
                     {at::detail::createCPUGenerator(seed_of(world.rank()))});
    });
  };
  EXPECT_THAT(refused([](int) { return 5; }), Each(std::string()));
  EXPECT_THAT(refused([](int rank) { return rank / 2; }), Each(std::string()));  // data replicas
  EXPECT_THAT(refused([](int rank) { return rank == 3 ? 6 : 5; }),
              Each(AllOf(HasSubstr("rank 2 has cpu (state"), HasSubstr("rank 3"),
                         HasSubstr("torch::manual_seed"))));
}

torch::Tensor batch(double start = 0) {
  return (torch::arange(40, torch::kFloat) + start).sin().view({5, 8});
}

/// Where the ranks' data come to differ.
struct Fault {
  const char* name;
  std::function<torch::Tensor(Mlp&, int rank)> loss;
  std::vector<std::string> told;
};

std::vector<Fault> faults() {
  return {
      {"another batch",
       [](Mlp& model, int rank) { return model(batch(rank)).pow(2).sum(); },
       {"aten::", "of shape [5, 8]", "on ranks 1 ", "same batch"}},
      {"another number of rows",
       [](Mlp& model, int rank) { return model(batch().slice(0, 0, 5 - rank)).pow(2).sum(); },
       {"part ways", "rank 0 is at", "of shape [5, 8]", "rank 1", "of shape [4, 8]"}},
      {"other labels",
       [](Mlp& model, int rank) { return torch::mse_loss(model(batch()), batch(rank)); },
       {"on ranks 1 ", "of shape [5, 8]"}},
      {"another mask beside a cut activation",
       [](Mlp& model, int rank) {
         const auto mask = torch::ones({5, 1}) * (1 + rank);
         return model->down(torch::relu(model->up(batch())) * mask).sum();
       },
       {"aten::mul", "of shape [5, 1]", "on ranks 1 "}},
      {"a batch of one element that differs",
       [](Mlp& model, int rank) {
         auto x = batch();
         if (rank == 1) x[4][7] += 0.5;
         return model(x).sum();
       },
       {"on ranks 1 "}},
  };
}

TEST(RankCheck, NamesTheOperatorAndTheRanks) {
  for (const Fault& fault : faults()) {
    const auto errors = errors_of(2, [&](World world) {
      Mlp model = make_seeded(1, [] { return Mlp(); });
      initialize(model, Config::parse(tensor_parallel(2)), test::in(world));
      const RankCheckScope on;
      fault.loss(model, world.rank()).backward();
    });
    for (const std::string& error : errors) {
      SCOPED_TRACE(c10::str(fault.name, ": ", error));
      EXPECT_THAT(error, HasSubstr("OSLO_CHECK"));
      for (const std::string& part : fault.told) EXPECT_THAT(error, HasSubstr(part));
    }
  }
}

TEST(RankCheck, RightRanksAreLeftAloneAndRoundingIsNoDifference) {
  for (const int size : {2, 3}) {
    run_as_threads(size, [&](World world) {
      Mlp model = make_seeded(1, [] { return Mlp(13); }),
          alone = make_seeded(1, [] { return Mlp(13); });
      const auto parallel =
          initialize(model, Config::parse(tensor_parallel(size)), test::in(world));
      const auto moved = [&] { return parallel.mpu().tensor_group()->ledger().total().calls; };
      const auto step = [&](double start) {
        const int64_t before = moved();
        torch::mse_loss(model(batch(start)), batch(7)).backward();
        return moved() - before;
      };
      const int64_t plain = step(0);
      model->zero_grad();
      {
        const RankCheckScope on;
        EXPECT_GT(step(1e-7 * world.rank()), plain);
      }
      torch::mse_loss(alone(batch()), batch(7)).backward();
      parity::expect_gradients(*model, *alone, {1e-4, 1e-6});
      model->zero_grad();
      EXPECT_EQ(step(0), plain);
    });
  }
}

TEST(RankCheck, VerifyCompares) {
  const auto errors = errors_of(2, [](World world) {
    Mlp model = make_seeded(1, [] { return Mlp(); }), alone = make_seeded(1, [] { return Mlp(); });
    const auto parallel = initialize(model, Config::parse(tensor_parallel(2)), test::in(world));
    EXPECT_TRUE(verify(parallel, alone, batch()).equal());
    EXPECT_FALSE(checks_ranks());
    verify(parallel, alone, batch(world.rank()));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("on ranks 1 "), HasSubstr("same batch"))));
}

/// A step of a schedule compares all ranks of one copy, those of pipeline stages too, and no copies
/// with each other.
TEST(RankCheck, AStepComparesBatchesOverTheRanksOfOneCopy) {
  for (const char* sizes : {R"("pipeline_parallel_size": 2)", R"("tensor_parallel_size": 2)"}) {
    const auto told = [&](const std::function<torch::Tensor(int rank)>& labels, bool checks) {
      return errors_of(4, [&](World world) {
        Mlp model = make_seeded(1, [] { return Mlp(); });
        const auto config =
            Config::parse(c10::str(R"({"model_parallelism": {"enable": true, )", sizes, "}}"));
        PipelineSchedule schedule(initialize(model, config, test::in(world)));
        const RankCheckScope on(checks);
        schedule.forward_backward_step({batch(), labels(world.rank())}, [&](const auto& micro) {
          return torch::mse_loss(model(micro[0]), micro[1]);
        });
      });
    };
    const auto of_replica = [&](int rank) {
      return batch(std::string(sizes).find("pipeline") == std::string::npos ? rank / 2 : rank % 2);
    };
    EXPECT_THAT(told(of_replica, true), Each(std::string())) << sizes;
    const auto of_rank = [](int rank) { return batch(rank == 3 ? 1 : 0); };
    const auto errors = told(of_rank, true);
    EXPECT_THAT(errors[3], AllOf(HasSubstr("OSLO_CHECK: forward_backward_step, a tensor of the "
                                           "batch of shape [5, 8] and type float"),
                                 HasSubstr("on ranks 3 "), HasSubstr("same batch")))
        << sizes;
    EXPECT_EQ(std::count(errors.begin(), errors.end(), errors[3]), 2) << sizes;
  }
}

TEST(RankCheck, AStepComparesGenerators) {
  const auto told = [](const std::function<uint64_t(int)>& seed_of) {
    return errors_of(4, [&](World world) {
      const RankGrid grid = MpuOptions().pipeline_parallel_size(2).grid(4);
      const auto copy = world.make_group("model", grid.groups("model")[world.rank() % 2]);
      const RankCheckScope on;
      check_step({}, {at::detail::createCPUGenerator(seed_of(world.rank()))}, *copy);
    });
  };
  EXPECT_THAT(told([](int rank) { return rank % 2; }), Each(std::string()));
  const auto errors = told([](int rank) { return rank == 3 ? 6 : 5; });
  EXPECT_THAT(errors[1], AllOf(HasSubstr("OSLO_CHECK: the state of the default generator"),
                               HasSubstr("on ranks 3 what it is on rank 1")));
  EXPECT_EQ(errors[3], errors[1]);
  EXPECT_EQ(errors[0] + errors[2], "");
}

/// A rank of the jobs below.
TEST(Child, Rank) {
  const char* fault = std::getenv("OSLO_TEST_FAULT");
  if (fault == nullptr) GTEST_SKIP() << "no rank of a job";
  const std::string of = fault;
  const World world = World::from_environment();
  torch::manual_seed(7);
  Mlp model;
  if (of == "generator") torch::manual_seed(8 + world.rank());
  if (of == "drawn") torch::rand({1 + world.rank()});
  try {
    if (of == "step" || of == "draw before a step") {
      const auto config = R"({"model_parallelism": {"pipeline_parallel_size": 2}})";
      PipelineSchedule schedule(initialize(model, Config::parse(config), test::in(world)));
      if (of != "step" && world.rank() == 1) torch::rand({1});
      schedule.forward_backward_step(
          {batch(0)}, [&](const auto& micro) { return model(micro[0]).square().mean(); });
      std::cout << "stepped" << std::endl;
      return;
    }
    initialize(model, Config::parse(tensor_parallel(2)), test::in(world));
    model(batch(of == "batch" ? world.rank() : 0)).sum().backward();
    std::cout << "trained" << std::endl;
  } catch (const Error& error) {
    std::cout << error.what() << std::endl;
  }
  try {
    world.barrier();  // rank 0 holds what the others read, and stays until they have
  } catch (const std::exception&) {
  }
}

std::string job(const std::string& fault, const char* check) {
  setenv("OSLO_TEST_FAULT", fault.c_str(), 1);
  setenv("OMP_NUM_THREADS", "1", 1);
  if (check != nullptr) setenv("OSLO_CHECK", check, 1);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  test::ToolProcess tool({"run", "-n", "2", "--", self, "--gtest_filter=Child.*"});
  EXPECT_EQ(tool.finish(), 0) << tool.error();
  unsetenv("OSLO_TEST_FAULT");
  unsetenv("OSLO_CHECK");
  return tool.output();
}

TEST(Processes, AreTold) {
  for (const std::string fault : {"generator", "drawn"}) {
    const std::string told = job(fault, nullptr);
    for (const std::string rank : {"[rank 0] ", "[rank 1] "}) {
      EXPECT_THAT(told, HasSubstr(rank + "initialize: the state of the default generator differs"));
    }
  }
  EXPECT_THAT(job("none", "1"),
              AllOf(HasSubstr("[rank 0] trained"), HasSubstr("[rank 1] trained")));
  EXPECT_THAT(job("step", "1"),
              AllOf(HasSubstr("[rank 0] stepped"), HasSubstr("[rank 1] stepped")));
  const std::string drew = job("draw before a step", "1");
  for (const std::string rank : {"[rank 0] ", "[rank 1] "}) {
    EXPECT_THAT(drew, HasSubstr(rank + "OSLO_CHECK: the state of the default generator"));
  }
  EXPECT_THAT(job("batch", "0"), Not(HasSubstr("OSLO_CHECK")));
  const std::string told = job("batch", "1");
  EXPECT_THAT(told, AllOf(HasSubstr("[rank 0] OSLO_CHECK: aten::"),
                          HasSubstr("[rank 1] OSLO_CHECK: aten::")));
}

}  // namespace
}  // namespace oslo
