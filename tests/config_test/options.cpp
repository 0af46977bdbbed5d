// Options that nothing read, once: each acts, or is refused by name with the way that works.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include "tests/config_test/config_errors.h"
#include "tests/support/error_of.h"
#include "tests/support/errors_of.h"
#include "tests/support/parity.h"
#include "tests/support/seeded.h"
#include "tests/support/temporary_directory.h"

namespace oslo::config_test {
namespace {

using test::TemporaryDirectory;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

torch::nn::Sequential make_net(uint64_t seed = 3) {
  return test::make_seeded(seed, [] {
    return torch::nn::Sequential(torch::nn::Linear(7, 9), torch::nn::Dropout(0.3),
                                 torch::nn::Linear(9, 5));
  });
}

/// A model as it is trained in one process, with all that goes on with it.
struct TrainedNet {
  explicit TrainedNet(uint64_t seed = 3)
      : net(make_net(seed)), optimizer(net->parameters(), 0.05) {}

  void step(int64_t number) {
    optimizer.zero_grad();
    const torch::Tensor x = torch::arange(14.).view({2, 7}).mul(0.1 * static_cast<double>(number));
    net->forward(x).square().sum().backward();
    optimizer.step();
    scheduler.step();
  }

  torch::nn::Sequential net;
  torch::optim::AdamW optimizer;
  torch::optim::StepLR scheduler{optimizer, 2, 0.5};
};

/// Of a run that LibTorch makes alone, without a break, from the same seed.
std::vector<torch::Tensor> uninterrupted(int64_t steps) {
  TrainedNet run;
  torch::manual_seed(11);
  for (int64_t i = 1; i <= steps; ++i) run.step(i);
  return run.net->parameters();
}

TEST(Options, LoadStateReadsWhatARunGoesOnFrom) {
  for (const bool merge : {true, false}) {
    const TemporaryDirectory folder;
    {
      TrainedNet run;
      torch::manual_seed(11);
      for (int64_t i = 1; i <= 3; ++i) run.step(i);
      save_parallelized(ModelView(run.net.ptr()), MPU(World::alone()), folder / "ckpt",
                        SaveOptions()
                            .merge_checkpoints(merge)
                            .optimizer(&run.optimizer)
                            .scheduler(&run.scheduler)
                            .extra({{"step", 3}}));
    }
    TrainedNet resumed(4);
    torch::manual_seed(99);
    nlohmann::json extra;
    load_state(ModelView(resumed.net.ptr()), folder / "ckpt",
               LoadOptions()
                   .optimizer(&resumed.optimizer)
                   .scheduler(&resumed.scheduler)
                   .random_states(true)
                   .extra(&extra));
    EXPECT_EQ(extra, (nlohmann::json{{"step", 3}}));
    for (int64_t i = 4; i <= 6; ++i) resumed.step(i);
    const auto wanted = uninterrupted(6), found = resumed.net->parameters();
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(torch::equal(found[i], wanted[i])) << i;
  }
}

TEST(Options, LoadStateRefusesWhatTheFolderHasNotAndChangesNothing) {
  const TemporaryDirectory folder;
  const auto saved = make_net();
  save_parallelized(ModelView(saved.ptr()), MPU(World::alone()), folder / "ckpt");
  TrainedNet run(4);
  const auto before = run.net->parameters().front().clone();
  const auto error = [&](const LoadOptions& options) {
    return test::error_of([&] { load_state(ModelView(run.net.ptr()), folder / "ckpt", options); });
  };
  EXPECT_THAT(error(LoadOptions().optimizer(&run.optimizer)), HasSubstr("has no optimizer"));
  EXPECT_THAT(error(LoadOptions().scheduler(&run.scheduler)), HasSubstr("has no scheduler"));
  EXPECT_THAT(error(LoadOptions().random_states(true)), HasSubstr("random_states.safetensors"));
  EXPECT_TRUE(torch::equal(run.net->parameters().front(), before));
}

PretrainedFamily own_family(std::vector<std::string> transposed) {
  PretrainedFamily family;
  family.model_type = "mine";
  family.transposed = std::move(transposed);
  return family;
}

TEST(Options, OfTheOtherDirectionAreRefused) {
  const TemporaryDirectory folder;
  const auto net = make_net();
  const ModelView model(net.ptr());
  const nlohmann::json config = {{"model_type", "mine"}};
  const auto mine = PretrainedOptions().family(own_family({}));
  save_pretrained(model, folder / "mine", PretrainedOptions(mine).config(config));
  const auto loading = [&](const PretrainedOptions& options) {
    return test::error_of([&] { load_pretrained(model, folder / "mine", options); });
  };
  EXPECT_THAT(loading(PretrainedOptions(mine).config(config)),
              HasSubstr("config(...) is for save_pretrained"));
  EXPECT_THAT(loading(PretrainedOptions(mine).max_shard_bytes(5'000'000'000)),
              HasSubstr("max_shard_bytes(...) is for save_pretrained"));
  const auto saving = [&](const PretrainedOptions& options) {
    return test::error_of([&] {
      save_pretrained(model, folder / "other", PretrainedOptions(options).config(config));
    });
  };
  EXPECT_THAT(saving(PretrainedOptions(mine).ignore("0.bias")),
              HasSubstr("ignore(\"0.bias\") is for load_pretrained"));
  EXPECT_THAT(saving(PretrainedOptions(mine).convert(true)),
              HasSubstr("convert(true) is for load_pretrained"));
  EXPECT_FALSE(std::filesystem::exists(folder / "other"));
}

TEST(Options, ATableOfOnesOwnIsTheFamily) {
  const TemporaryDirectory folder;
  const auto net = make_net(), again = make_net(4);
  const auto mine = PretrainedOptions().family(own_family({"0.weight"}));
  save_pretrained(ModelView(net.ptr()), folder / "mine",
                  PretrainedOptions(mine).config({{"model_type", "mine"}}));
  load_pretrained(ModelView(again.ptr()), folder / "mine", mine);
  EXPECT_TRUE(torch::equal(again->parameters()[0], net->parameters()[0]));
  EXPECT_THAT(test::error_of([&] { load_pretrained(ModelView(again.ptr()), folder / "mine"); }),
              HasSubstr("has the model_type 'mine'"));
}

TEST(Options, AParallelConfigOfAMergedSaveIsRefused) {
  const TemporaryDirectory folder;
  const auto net = make_net();
  const auto save = [&](bool merge) {
    save_parallelized(ModelView(net.ptr()), MPU(World::alone()), folder / "ckpt",
                      SaveOptions().merge_checkpoints(merge).parallel_config({{"kept", true}}));
  };
  EXPECT_THAT(test::error_of([&] { save(true); }),
              HasSubstr("SaveOptions().parallel_config(...) lies beside the parts"));
  EXPECT_FALSE(std::filesystem::exists(folder / "ckpt"));
  save(false);
  EXPECT_TRUE(std::filesystem::exists(folder / "ckpt" / "parallel_config.json"));
}

/// What initialize says on each of `ranks`; `tensor` of them share the model.
std::vector<std::string> initialize_errors(
    int ranks, const std::string& config,
    const std::function<void(InitializeOptions&, torch::nn::Sequential&)>& set) {
  return test::errors_of(ranks, [&](World world) {
    at::set_num_threads(1);
    auto net = make_net();
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { net->forward(torch::ones({2, 7})); };
    set(how, net);
    initialize(net, Config::parse(config), how);
  });
}

TEST(Options, AMemoryLimitIsKeptOrRefused) {
  const std::string one = "{}", tensor = parity::tensor_parallel(2);
  const std::string stages = R"({"model_parallelism": {"pipeline_parallel_size": 2}})";
  const auto limited = [](int64_t bytes) {
    return [=](InitializeOptions& how, torch::nn::Sequential&) { how.memory_limit = bytes; };
  };
  // On one rank 122 weights in float with their gradients are 976 bytes.
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(initialize_errors(ranks, one, limited(900)),
                Each(AllOf(HasSubstr("a rank needs 976 B for parameters and gradients"),
                           HasSubstr("memory_limit is 900 B"))));
    EXPECT_THAT(initialize_errors(ranks, one, limited(5000)), Each(std::string()));
  }
  EXPECT_THAT(initialize_errors(2, tensor, limited(300)), Each(HasSubstr("a rank needs ")));
  EXPECT_THAT(initialize_errors(2, tensor, limited(5000)), Each(std::string()));
  EXPECT_THAT(initialize_errors(2, stages, limited(5000)),
              Each(HasSubstr("memory_limit is of a model on one pipeline stage")));
  EXPECT_THAT(initialize_errors(2, one, limited(-1)), Each(HasSubstr("memory_limit is -1")));
  for (const std::string& config : {one, tensor}) {
    EXPECT_THAT(initialize_errors(2, config,
                                  [](InitializeOptions& how, torch::nn::Sequential&) {
                                    how.memory_limit = 5000;
                                    how.example_inputs = nullptr;
                                  }),
                Each(HasSubstr("memory_limit needs InitializeOptions::example_inputs")));
    EXPECT_THAT(initialize_errors(2, config,
                                  [](InitializeOptions& how, torch::nn::Sequential& net) {
                                    how.memory_limit = 5000;
                                    how.example_inputs = [&net] {
                                      const at::Tensor y = net->forward(torch::ones({2, 7}));
                                      if (y.const_data_ptr() == nullptr) throw Error("no data");
                                    };
                                  }),
                Each(HasSubstr("memory_limit cannot be compared with anything")));
    EXPECT_THAT(initialize_errors(2, config,
                                  [](InitializeOptions& how, torch::nn::Sequential&) {
                                    how.rates = "/nowhere.json";
                                    how.example_inputs = nullptr;
                                  }),
                Each(HasSubstr("InitializeOptions::rates (/nowhere.json) counts seconds")));
  }
}

TEST(Options, ASeedIsThatOfTheStreams) {
  std::vector<at::Tensor> drawn;
  for (const uint64_t seed : {5, 5, 6}) {
    run_as_threads(1, [&](World world) {
      auto net = make_net();
      InitializeOptions how;
      how.world = world;
      how.seed = seed;
      const ParallelModel parallel = initialize(net, {}, how);
      drawn.push_back(at::rand({5}, parallel.mpu().random().sharded()));
    });
  }
  EXPECT_TRUE(torch::equal(drawn[0], drawn[1]));
  EXPECT_FALSE(torch::equal(drawn[0], drawn[2]));
}

TEST(Options, ABackendIsThatOfTheGroups) {
  const MPU mpu(World::fake(0, 2), MpuOptions().tensor_parallel_size(2).backend(Transport::fake));
  EXPECT_EQ(mpu.tensor_group()->process_group()->getDefaultBackend()->getBackendName(), "fake");
  run_as_threads(2, [](const World& world) {
    const MPU gloo(world, MpuOptions().tensor_parallel_size(2).backend(Transport::gloo));
    EXPECT_EQ(gloo.tensor_group()->process_group()->getDefaultBackend()->getBackendName(), "gloo");
  });
}

TEST(Options, AClassThatSaysHowItIsCutRefusesAnotherWord) {
  const MPU mpu(World::fake(0, 2), MpuOptions().tensor_parallel_size(2));
  const auto row = nn::LinearOptions(4, 6).parallel("row");
  EXPECT_THAT(test::error_of([&] { nn::ColumnParallelLinear(row, mpu); }),
              HasSubstr("parallel(\"row\") was given to a ColumnParallelLinear"));
  EXPECT_EQ(nn::RowParallelLinear(row, mpu)->weight.size(1), 2);
}

}  // namespace
}  // namespace oslo::config_test
