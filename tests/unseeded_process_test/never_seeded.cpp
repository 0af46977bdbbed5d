// Programs that nobody seeded: what initialize gives them, on ranks that are processes, beside
// plain LibTorch that goes on from there.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>

#include "mpu/group/rank_check.h"
#include "oslo_cpp/initialize/agreement.h"
#include "tests/models/small.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/tool_process.h"

namespace oslo {
namespace {

using models::Mlp;
using test::errors_of;
using testing::Each;
using testing::HasSubstr;

/// What four ranks, two copies of a model without parameters, say of generators with these seeds,
/// which have drawn so much.
std::vector<std::string> told_of(
    const std::function<uint64_t(int)>& seed_of,
    const std::function<int(int)>& draws_of = [](int) { return 1; }) {
  return errors_of(4, [&](World world) {
    const RankGrid grid = MpuOptions().tensor_parallel_size(2).grid(4);  // {0, 1}, {2, 3}
    at::Generator generator = at::detail::createCPUGenerator(seed_of(world.rank()));
    torch::rand({draws_of(world.rank())}, generator);
    const ModelView nothing({}, {}, {});
    const TakenFromFirst taken = agree_on_model(world, grid, nothing, {generator});
    EXPECT_FALSE(taken.weights);
    if (taken.states) fail("taken");
  });
}

TEST(NeverSeeded, GeneratorsTakeTheStateOfTheFirst) {
  constexpr uint64_t kDrawn = uint64_t{1} << 40;  // LibTorch draws 64 random bits
  const auto differs = Each(HasSubstr("the state of the default generator differs between ranks"));
  EXPECT_THAT(told_of([](int rank) { return kDrawn + rank; }), Each(HasSubstr("taken")));
  EXPECT_THAT(told_of([](int rank) { return kDrawn + rank / 2; }), Each(std::string()));
  // Somebody seeded a rank.
  EXPECT_THAT(told_of([](int rank) { return rank == 1 ? kDrawn - 1 : kDrawn + rank; }), differs);
  // One rank drew more after they had one state.
  EXPECT_THAT(told_of([](int) { return kDrawn; }, [](int rank) { return 1 + rank; }), differs);
}

/// Everything that may be drawn when a model is made, and a draw in forward.
struct DrawnImpl : torch::nn::Module {
  DrawnImpl()
      : wte(register_module("wte", torch::nn::Embedding(9, 8))),
        mlp(register_module("mlp", Mlp(7))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        lm_head(register_module("lm_head",
                                torch::nn::Linear(torch::nn::LinearOptions(8, 9).bias(false)))) {
    lm_head->weight = wte->weight;
    order = register_buffer("order", torch::randperm(8));
    noise = register_buffer("noise", torch::randn({1, 8}).expand({5, 8}));
    scale = register_parameter("scale", torch::randn({8, 3}).t()[1]);
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto x = norm(wte(tokens)) + noise;
    return lm_head(torch::dropout(mlp(x.index_select(1, order)), 0.4, is_training()) * scale);
  }
  std::vector<torch::Tensor> drawn() const {
    return {noise, wte->weight, mlp->up->weight, mlp->up->bias, mlp->down->weight, mlp->down->bias,
            order, scale};
  }
  torch::nn::Embedding wte;
  Mlp mlp;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear lm_head;
  torch::Tensor order, noise, scale;
};
TORCH_MODULE(Drawn);

std::vector<torch::Tensor> whole(const Drawn& model) {
  std::vector<torch::Tensor> tensors;
  for (const auto& each : model->drawn()) tensors.push_back(full_tensor(each).detach().clone());
  return tensors;
}

bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

/// What plain LibTorch loses in three steps from these initial values and this random state.
std::vector<double> plain_losses(const std::vector<torch::Tensor>& values,
                                 const torch::Tensor& state) {
  Drawn model;
  const torch::NoGradGuard no_grad;
  const auto tensors = model->drawn();
  for (size_t i = 0; i < values.size(); ++i) {
    // Of the noise one row is all of it.
    if (i == 0) tensors[i][0].copy_(values[i][0]);
    if (i > 0) tensors[i].copy_(values[i]);
  }
  torch::optim::Adam optimizer(model->parameters(), 0.05);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(state);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    const at::AutoGradMode gradients(true);
    optimizer.zero_grad();
    const auto tokens = torch::randint(9, {5});
    auto loss = torch::nn::functional::cross_entropy(model(tokens), (tokens + 1) % 9);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

/// A program that nobody seeded: what it was given is what rank 0, and of random states its copy's
/// first rank, had, and it trains as plain LibTorch does from there.
void run_never_seeded(const World& world, const Config& config, bool deferred, bool second) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  if (deferred || second) generator.seed();  // as at the start of a process
  OSLO_CHECK(generator.current_seed() >= uint64_t{1} << 40, "it was seeded");
  const auto made = [&] {
    std::optional<DeferredInit> guard;
    if (deferred) guard.emplace();
    return Drawn();
  };
  Drawn model = made(), other = made();
  torch::optim::Adam optimizer(model->parameters(), 0.05);
  const torch::Tensor before = generator.get_state();
  const std::vector<torch::Tensor> values = deferred ? std::vector<torch::Tensor>() : whole(model);
  auto parallel = initialize(model, config, test::in(world));
  if (second) initialize(other, config, test::in(world));
  const MPU& mpu = parallel.mpu();
  const torch::Tensor state = generator.get_state();
  const bool first_of_copy = mpu.get_model_parallel_rank() == 0;
  const bool keeps = !first_of_copy || torch::equal(before, state);
  const auto everywhere = [&](const std::string& text) { return world.exchange("a test", text); };
  const auto digest = [](const torch::Tensor& tensor) {
    return std::to_string(content_digest(tensor));
  };
  const auto states = everywhere(digest(state));
  std::vector<torch::Tensor> start = whole(model);
  // The same model at a data rank and on rank 0.
  std::string digests;
  for (const torch::Tensor& tensor : start) digests += digest(tensor) + " ";
  if (second) {
    for (const torch::Tensor& tensor : whole(other)) digests += digest(tensor) + " ";
  }
  const auto models = everywhere(digests);
  const bool alike = std::all_of(models.begin(), models.end(),
                                 [&](const std::string& each) { return each == models[0]; });
  const bool rank_0s = deferred || world.rank() > 0 || equal(start, values);
  bool streams = true;
  for (const auto& copy : mpu.grid().groups("model")) {
    for (const int rank : copy) streams = streams && states[rank] == states[copy[0]];
    if (copy[0] > 0) streams = streams && states[copy[0]] != states[0];
  }
  const std::vector<double> expected = plain_losses(start, state);
  generator.set_state(state);
  bool trains = true;
  for (const double loss_of_plain : expected) {
    optimizer.zero_grad();
    const auto tokens = torch::randint(9, {5});
    torch::Tensor loss;
    const auto loss_of = [&](const torch::Tensor& batch) {
      return torch::nn::functional::cross_entropy(model(batch), (batch + 1) % 9);
    };
    if (mpu.size("pipeline") > 1) {
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(1).kind("gpipe"));
      loss =
          schedule
              .forward_backward_step({tokens}, [&](const auto& micro) { return loss_of(micro[0]); })
              .loss;
    } else {
      loss = full_tensor(loss_of(tokens));
      loss.backward();
    }
    optimizer.step();
    trains = trains && std::abs(loss.item<double>() - loss_of_plain) < 1e-5;
  }
  std::cout << "keeps " << keeps << ", alike " << alike << ", rank 0's " << rank_0s << ", streams "
            << streams << ", trains " << trains << std::endl;
}

/// A rank of the jobs below.
TEST(Child, OfJobs) {
  const char* said = std::getenv("OSLO_TEST_JOB");
  if (said == nullptr) GTEST_SKIP() << "no rank of a job";
  const std::string job = said;
  const World world = World::from_environment();
  const Config config = Config::parse(std::getenv("OSLO_TEST_CONFIG"));
  try {
    if (job == "three models") {
      run_never_seeded(world, config, /*deferred=*/false, /*second=*/false);
      run_never_seeded(world, config, /*deferred=*/true, /*second=*/false);
      run_never_seeded(world, config, /*deferred=*/false, /*second=*/true);
    } else {
      if (job == "one rank seeded" && world.rank() == 1) torch::manual_seed(1);
      Mlp first, model;
      torch::Tensor x = torch::randn({5, 8}), y = torch::randn({5, 8});
      if (job != "its own batch") x.fill_(0.5);
      if (job != "its own labels") y.fill_(0.5);
      if (job == "draws apart") {
        initialize(first, config, test::in(world));
        torch::rand({1 + world.rank()});
      }
      auto parallel = initialize(model, config, test::in(world));
      const auto loss = [&](const auto& micro) {
        return torch::mse_loss(model(micro[0]), micro[1]);
      };
      if (parallel.mpu().size("pipeline") > 1) {
        PipelineSchedule(parallel, PipelineOptions().num_microbatches(2))
            .forward_backward_step({x, y}, loss);
      } else {
        loss(std::vector<torch::Tensor>{x, y}).backward();
      }
      std::cout << "trained" << std::endl;
    }
  } catch (const Error& error) {
    std::cout << error.what() << std::endl;
  }
  try {
    world.barrier();  // rank 0 holds what the others read, and stays until they have
  } catch (const std::exception&) {
  }
}

constexpr const char* kTensor2 = R"({"model_parallelism": {"tensor_parallel_size": 2}})";

struct Said {
  std::string output, error;
};

Said run_job(const std::string& job, int ranks = 2, const char* config = kTensor2,
             const char* check = "") {
  setenv("OSLO_TEST_JOB", job.c_str(), 1);
  setenv("OSLO_TEST_CONFIG", config, 1);
  setenv("OSLO_CHECK", check, 1);
  setenv("OMP_NUM_THREADS", "1", 1);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  test::ToolProcess tool(
      {"run", "-n", std::to_string(ranks), "--", self, "--gtest_filter=Child.OfJobs"});
  EXPECT_EQ(tool.finish(), 0) << tool.error();
  for (const char* name : {"OSLO_TEST_JOB", "OSLO_TEST_CONFIG", "OSLO_CHECK"}) unsetenv(name);
  return {tool.output(), tool.error()};
}

/// How often a text is there.
int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(NeverSeeded, TakesWhatTheFirstRanksHaveAndTrainsAsOneDevice) {
  struct Case {
    int ranks;
    const char* config;
    const char* taken;
  };
  const char* const kBoth =
      "oslo: no rank was seeded: all ranks take the initial weights of rank 0, and the ranks of "
      "one model take the random state of its first rank; torch::manual_seed";
  const char* const kWeights =
      "oslo: no rank was seeded: all ranks take the initial weights of rank 0; torch::manual_seed";
  for (const Case& each : std::vector<Case>{
           {2, R"({"model_parallelism": {"tensor_parallel_size": 2}})", kBoth},
           {2, R"({"model_parallelism": {"pipeline_parallel_size": 2}})", kBoth},
           {2, R"({"model_parallelism": {"tensor_parallel_size": 1}})", kWeights},
           {4, R"({"model_parallelism": {"tensor_parallel_size": 2}})", kBoth},
           {1, R"({"model_parallelism": {"tensor_parallel_size": 1}})", nullptr},
       }) {
    SCOPED_TRACE(c10::str(each.ranks, " ranks of ", each.config));
    const Said told = run_job("three models", each.ranks, each.config);
    EXPECT_EQ(count(told.output, "keeps 1, alike 1, rank 0's 1, streams 1, trains 1"),
              3 * each.ranks)
        << told.output << told.error;
    EXPECT_EQ(count(told.error, "no rank was seeded"), each.taken ? 4 : 0);
    if (each.taken == nullptr) continue;
    EXPECT_GE(count(told.error, each.taken), 3);
    // The second of two models was made before there was one state: weights alone are taken.
    EXPECT_GE(count(told.error, kWeights), 1);
  }
}

TEST(NeverSeeded, WhatWasDrawnBeforeIsFoundInTheFirstSteps) {
  for (const std::string job : {"its own batch", "its own labels"}) {
    const std::string told = run_job(job).output;
    EXPECT_EQ(count(told, "] OSLO_CHECK: "), 2) << job << "\n" << told;
    EXPECT_EQ(count(run_job(job, 2, kTensor2, "0").output, "] trained"), 2);
  }
  // The ranks of the first stage find it, and those of the second wait for them.
  const char* const both =
      R"({"model_parallelism": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}})";
  const std::string told = run_job("its own batch", 4, both).output;
  EXPECT_GE(count(told, "OSLO_CHECK: "), 2) << told;
  EXPECT_EQ(count(told, "] trained"), 0) << told;
}

TEST(NeverSeeded, IsNoJobWithASeedAndNoneThatDrawsApartLater) {
  const std::string seeded = run_job("one rank seeded").output;
  EXPECT_EQ(count(seeded, "initialize: the initial value differs between ranks"), 2) << seeded;
  const std::string apart = run_job("draws apart").output;
  EXPECT_EQ(count(apart, "the state of the default generator differs between ranks"), 2) << apart;
}

}  // namespace
}  // namespace oslo
