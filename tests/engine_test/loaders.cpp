// The loader beside an engine: this data rank's rows of a program's own.
#include <mutex>

#include "tests/engine_test/cases.h"
#include "tests/support/error_of.h"
#include "tests/support/errors_of.h"

namespace oslo::test::engines {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

/// Numbered samples.
class Numbers : public torch::data::Dataset<Numbers> {
 public:
  explicit Numbers(size_t size) : size_(size) {}
  Example get(size_t index) override {
    const Tensor x = torch::arange(3, torch::kDouble) * (0.1 + static_cast<double>(index));
    return {torch::sin(x), torch::cos(x.slice(0, 0, 2))};
  }
  torch::optional<size_t> size() const override { return size_; }

 private:
  size_t size_;
};

auto loader_of(size_t samples, size_t batch) {
  auto dataset = Numbers(samples).map(torch::data::transforms::Stack<>());
  return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      std::move(dataset), torch::data::DataLoaderOptions(batch));
}

/// A loop over a LibTorch loader, whose last batch is odd, is that of one device.
TEST(EngineLoader, ALoopOverLibTorchsLoaderIsThatOfOneDevice) {
  for (const Grid& grid : {Grid{1, 1}, Grid{2, 1}, Grid{3, 1}, Grid{2, 2}}) {
    SCOPED_TRACE(grid.name());
    run_as_threads(grid.size(), [&](World world) {
      at::set_num_threads(1);
      torch::nn::Sequential model = make_net(), plain = make_net();
      torch::optim::SGD optimizer = make_optimizer(model), by_hand = make_optimizer(plain);
      auto loader = loader_of(21, 8);
      auto [engine, train_loader] = oslo::initialize(
          model, optimizer, mean_loss, loader, Config::parse(engine_config(grid, "")), in(world));
      for (int epoch = 0; epoch < 2; ++epoch) {
        std::vector<int64_t> rows;
        for (auto& batch : *train_loader) {
          rows.push_back(batch.data.size(0));
          engine.zero_grad();
          engine.backward(engine.criterion(engine(batch.data), batch.target));
          engine.step();
        }
        if (grid.data == 2) {
          const bool first = engine.parallel().mpu().get_data_parallel_rank() == 0;
          EXPECT_EQ(rows, (std::vector<int64_t>{4, 4, first ? 3 : 2}));
        }
        auto whole = loader_of(21, 8);
        for (auto& batch : *whole) {
          by_hand.zero_grad();
          mean_loss(plain->forward(batch.data), batch.target).backward();
          by_hand.step();
        }
        parity::expect_weights(*model, *plain);
      }
    });
  }
}

/// An evaluation between forward and backward does not change the rows that a loss is of, and data
/// from elsewhere has no share in the last batch's.
TEST(EngineLoader, TheRowsOfALossAreThoseOfItsForward) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential model = make_net(), plain = make_net();
    torch::optim::SGD optimizer = make_optimizer(model), by_hand = make_optimizer(plain);
    const Batches batches = make_batches({5}), others = make_batches({7, 4});
    auto [engine, loader] = oslo::initialize(model, optimizer, mean_loss, batches, {}, in(world));
    auto test_loader = engine.test_loader(others);
    const auto expected_step = [&](const Example& batch) {
      by_hand.zero_grad();
      mean_loss(plain->forward(batch.data), batch.target).backward();
      by_hand.step();
      expect_same_weights(model, plain);
    };
    for (auto& batch : loader) {
      engine.zero_grad();
      const Tensor output = engine(batch.data);
      {
        const torch::NoGradGuard no_grad;
        for (auto& other : test_loader) engine(other.data);
      }
      engine.backward(engine.criterion(output, batch.target));
      engine.step();
    }
    expected_step(batches[0]);
    const Example& own = others[1];
    const int64_t half = world.rank() * 2;
    engine.zero_grad();
    engine.backward(engine.criterion(engine(own.data.slice(0, half, half + 2)),
                                     own.target.slice(0, half, half + 2)));
    engine.step();
    expected_step(own);
  });
}

/// What each of two data ranks is given.
template <typename Make>
auto given(const Make& make, const Config& config = {}) {
  using Loader = decltype(make());
  std::vector<std::vector<typename EngineLoader<Loader>::Batch>> found(2);
  run_as_threads(2, [&](World world) {
    torch::nn::Linear model = make_seeded(1, [] { return torch::nn::Linear(3, 2); });
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [engine, loader] =
        oslo::initialize(model, optimizer, mean_loss, make(), config, in(world));
    for (auto& batch : loader) found[world.rank()].push_back(batch);
  });
  return found;
}

TEST(EngineLoader, LeavesWhatIsOfThisRankAsItIs) {
  const auto all = [] { return std::vector<Tensor>{torch::arange(5.), torch::arange(1.)}; };
  EXPECT_EQ(given([&] { return oslo::divided(all()); })[1][0].size(0), 5);
  const auto sampled = given([] {
    return torch::data::make_data_loader(
        Numbers(8).map(torch::data::transforms::Stack<>()),
        torch::data::samplers::DistributedSequentialSampler(8, 2, 0, false), 4);
  });
  EXPECT_EQ(sampled[0].size(), 1u);
  EXPECT_EQ(sampled[0][0].data.size(0), 4);
  EXPECT_EQ(sampled[1][0].data.size(0), 4);
}

TEST(EngineLoader, DividesWhateverHasRows) {
  const Tensor x = torch::arange(5.), y = torch::arange(10.).view({5, 2});
  const auto split = x.tensor_split(2);
  for (int rank = 0; rank < 2; ++rank) {
    const int64_t start = rank == 0 ? 0 : 3, end = rank == 0 ? 3 : 5;
    const auto expect_part = [&](const Tensor& part, const Tensor& of) {
      EXPECT_TRUE(torch::equal(part, of.slice(0, start, end)));
    };
    using Pair = std::pair<Tensor, Tensor>;
    const auto pair = given([&] { return std::vector<Pair>{{x, y}}; })[rank][0];
    expect_part(pair.first, x);
    expect_part(pair.second, y);
    using Triple = std::tuple<Tensor, Tensor, Tensor>;
    const auto triple = given([&] { return std::vector<Triple>{{x, y, x}}; })[rank][0];
    expect_part(std::get<1>(triple), y);
    expect_part(std::get<2>(triple), x);
    const auto fields = given([&] { return std::vector<std::vector<Tensor>>{{x, y}}; })[rank][0];
    expect_part(fields[1], y);
    using Samples = std::vector<torch::data::TensorExample>;
    const auto samples = given([&] {
      return std::vector<Samples>{{x[0], x[1], x[2], x[3], x[4]}};
    });
    EXPECT_EQ(static_cast<int64_t>(samples[rank][0].size()), end - start);
    EXPECT_TRUE(torch::equal(samples[rank][0][0].data, x[start]));
  }
}

TEST(EngineLoader, LeavesOutWhatMakesNoStepAndSaysSo) {
  torch::nn::Linear model(3, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto config = Config::parse(R"({"parallel": {}, "gradient_accumulation": 3})");
  const std::vector<Tensor> seven(7, torch::ones({2, 3}));
  auto [engine, loader] =
      oslo::initialize(model, optimizer, mean_loss, seven, config, in(World::alone()));
  EXPECT_EQ(loader.size(), 6u);
  auto all = engine.test_loader(seven);
  EXPECT_EQ(all.size(), 7u);
  EXPECT_EQ(std::distance(all.begin(), all.end()), 7);
  testing::internal::CaptureStderr();
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_EQ(std::distance(loader.begin(), loader.end()), 6);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "oslo: of an epoch's 7 batches the last one is left out: 'gradient_accumulation' takes "
            "3 a step\n");

  torch::nn::Linear other(3, 2);
  const std::vector<Tensor> two(2, torch::ones({2, 3}));
  auto [second, small] =
      oslo::initialize(other, optimizer, mean_loss, two, config, in(World::alone()));
  expect_contains(error_of([&small = small] { small.begin(); }),
                  {"has 2 batches", "'gradient_accumulation' takes 3", "at most 2"});
}

TEST(EngineLoader, GivesNothingBehindTheEnd) {
  torch::nn::Linear model(3, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [engine, loader] =
      oslo::initialize(model, optimizer, mean_loss, std::vector<Tensor>{torch::ones({2, 3})}, {},
                       in(World::alone()));
  auto at = loader.begin();
  ++at;
  EXPECT_TRUE(at == loader.end());
  EXPECT_THAT(error_of([&] { *at; }), HasSubstr("no more batches"));
  EXPECT_THAT(error_of([&] { ++at; }), HasSubstr("no more batches"));
}

struct Opaque {};

/// On every rank alike.
template <typename Make>
std::vector<std::string> refused(const Make& make) {
  return errors_of(2, [&](World world) {
    torch::nn::Linear model = make_seeded(1, [] { return torch::nn::Linear(3, 2); });
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [engine, loader] =
        oslo::initialize(model, optimizer, mean_loss, make(world.rank()), {}, in(world));
    for (auto& batch : loader) (void)batch;
  });
}

TEST(EngineLoader, RefusesOnEveryRank) {
  EXPECT_THAT(refused([](int rank) {
                return std::vector<Tensor>{torch::full({4, 3}, rank)};
              }),
              Each(AllOf(HasSubstr("first batch of an epoch differs between ranks"),
                         HasSubstr("DistributedRandomSampler"))));
  EXPECT_THAT(refused([](int) {
                return std::vector<Tensor>{torch::ones({1, 3})};
              }),
              Each(AllOf(HasSubstr("a batch of 1 row cannot be divided over 2 data ranks"),
                         HasSubstr("drop_last(true)"))));
  EXPECT_THAT(refused([](int) {
                return std::vector<Example>{{torch::ones({4, 3}), torch::ones({3, 2})}};
              }),
              Each(HasSubstr("tensors of 4 and of 3 rows")));
  EXPECT_THAT(refused([](int) { return std::vector<Opaque>(2); }),
              Each(AllOf(HasSubstr("Opaque"), HasSubstr("oslo::BatchRows"),
                         HasSubstr("oslo::divided(loader)"))));
}

}  // namespace
}  // namespace oslo::test::engines
