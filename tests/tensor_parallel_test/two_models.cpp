// Programs in which models that were initialized one by one meet: their meshes are different
// objects over the same ranks.
#include <gmock/gmock.h>

#include "tests/models/small.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using torch::nn::Linear;

/// The models of one program, made alike for one device and for many; each is handed to initialize
/// by itself.
struct Meeting {
  models::Mlp first{nullptr}, second{nullptr};

  explicit Meeting(uint64_t seed = 4) {
    first = parity::make_seeded(seed, [] { return models::Mlp(13); });
    second = parity::make_seeded(seed + 1, [] { return models::Mlp(13); });
    first->to(torch::kFloat64);
    second->to(torch::kFloat64);
  }
  std::vector<ParallelModel> parallelize(const World& world, bool example) {
    std::vector<ParallelModel> parallel;
    for (models::Mlp model : {first, second}) {
      auto how = test::in(world);
      if (example) {
        how.example_inputs = [&] { model->forward(torch::ones({5, 8}, torch::kDouble)); };
      }
      const auto config = Config::parse(parity::tensor_parallel(world.size()));
      parallel.push_back(initialize(model, config, how));
    }
    return parallel;
  }
};

/// Three steps of a program on one device and on `ranks`, then the same weights in both models.
void expect_as_alone(int ranks, const std::function<void(Meeting&, int step)>& step,
                     bool example = false) {
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Meeting plain, cut;
    const auto parallel = cut.parallelize(world, example);
    for (int i = 0; i < 3; ++i) {
      step(plain, i);
      step(cut, i);
      for (const bool of_first : {true, false}) {
        auto mine = of_first ? cut.first : cut.second;
        auto one = of_first ? plain.first : plain.second;
        parity::expect_gradients(*mine, *one);
        parity::expect_weights(*mine, *one);
      }
    }
    for (const ParallelModel& each : parallel) {
      EXPECT_TRUE(each.plan().gathers.empty()) << each.plan().to_string();
    }
  });
}

torch::Tensor drawn_for(int step) {
  return parity::make_seeded(50 + step, [] { return torch::randn({5, 8}, torch::kFloat64); });
}

TEST(TwoModels, AGeneratorAndItsCritic) {
  for (const int ranks : {2, 3}) {
    for (const bool example : {false, true}) {
      expect_as_alone(
          ranks,
          [](Meeting& gan, int step) {
            torch::optim::SGD of_generator(gan.first->parameters(), 0.05),
                of_critic(gan.second->parameters(), 0.05);
            const auto noise = drawn_for(step), real = drawn_for(step + 10);
            of_critic.zero_grad();
            const auto fake = gan.first->forward(noise).detach();
            (torch::softplus(gan.second->forward(fake)).mean() +
             torch::softplus(-gan.second->forward(real)).mean())
                .backward();
            of_critic.step();
            of_generator.zero_grad();
            torch::softplus(-gan.second->forward(gan.first->forward(noise))).mean().backward();
            of_generator.step();
          },
          example);
    }
  }
}

TEST(TwoModels, CutValuesOfBothInOneOperator) {
  for (const int ranks : {2, 3}) {
    expect_as_alone(ranks, [](Meeting& pair, int step) {
      pair.first->zero_grad();
      pair.second->zero_grad();
      const auto x = drawn_for(step);
      // What the first layers give is cut; in each operator the operands are of two models.
      const auto a = torch::tanh(pair.first->up(x)), b = torch::sigmoid(pair.second->up(x));
      const auto joined = torch::cat({a * b, a + b}, 0);
      (joined.pow(2).mean() + torch::linear(a, pair.second->up->weight.t()).sin().mean() +
       torch::mse_loss(a, b.detach()))
          .backward();
      torch::optim::SGD(pair.first->parameters(), 0.05).step();
      torch::optim::SGD(pair.second->parameters(), 0.05).step();
    });
  }
}

TEST(TwoModels, ATargetNetworkFollowsByMovingAverage) {
  for (const int ranks : {2, 3}) {
    expect_as_alone(ranks, [](Meeting& nets, int step) {
      torch::optim::AdamW optimizer(nets.first->parameters(), torch::optim::AdamWOptions(1e-2));
      optimizer.zero_grad();
      torch::Tensor target;
      {
        const torch::NoGradGuard no_grad;
        target = nets.second->forward(drawn_for(step));
      }
      torch::mse_loss(nets.first->forward(drawn_for(step)), target).backward();
      optimizer.step();
      const torch::NoGradGuard no_grad;
      const auto online = nets.first->parameters();
      auto average = nets.second->parameters();
      for (size_t i = 0; i < online.size(); ++i) {
        if (step == 0) average[i].copy_(online[i]);
        if (step == 1) average[i].mul_(0.9).add_(online[i], 0.1);
        if (step == 2) average[i].lerp_(online[i], 0.1);
        EXPECT_EQ(is_placed(average[i] - online[i]), is_placed(online[i]));
      }
    });
  }
}

TEST(TwoModels, BothInOneClipAndOneOptimizer) {
  for (const int ranks : {1, 2, 3}) {
    run_as_threads(ranks, [&](World world) {
      at::set_num_threads(1);
      Meeting plain, cut;
      cut.parallelize(world, false);
      double norms[2][2];
      int which = 0;
      for (Meeting* each : {&plain, &cut}) {
        auto parameters = each->first->parameters();
        for (const auto& p : each->second->parameters()) parameters.push_back(p);
        torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-2));
        each->second->forward(each->first->forward(drawn_for(0))).pow(2).mean().backward();
        norms[which][0] = torch::nn::utils::clip_grad_norm_(parameters, 0.1);
        norms[which][1] = clip_grad_norm_(parameters, 0.05);
        optimizer.step();
        ++which;
      }
      EXPECT_NEAR(norms[1][0], norms[0][0], 1e-9);
      EXPECT_NEAR(norms[1][1], norms[0][1], 1e-9);
      parity::expect_weights(*cut.first, *plain.first);
      parity::expect_weights(*cut.second, *plain.second);
    });
  }
}

/// A head on an encoder that another model has too.
struct HeadedImpl : torch::nn::Module {
  HeadedImpl(const models::Mlp& encoder, int64_t out)
      : encoder(register_module("encoder", encoder)),
        head(register_module("head", Linear(8, out))) {}
  torch::Tensor forward(const torch::Tensor& x) { return head(torch::relu(encoder(x))); }
  models::Mlp encoder;
  Linear head;
};
TORCH_MODULE(Headed);

TEST(TwoModels, OneEncoderInTwoWrappers) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool example : {false, true}) {
      run_as_threads(ranks, [&](World world) {
        at::set_num_threads(1);
        const auto make = [] {
          const models::Mlp encoder(13);
          return std::pair(Headed(encoder, 5), Headed(encoder, 7));
        };
        auto plain = parity::make_seeded(6, make), cut = parity::make_seeded(6, make);
        for (auto pair : {plain, cut}) {
          pair.first->to(torch::kFloat64);
          pair.second->to(torch::kFloat64);
        }
        const auto config = Config::parse(parity::tensor_parallel(ranks));
        std::vector<ParallelModel> parallel;
        for (Headed model : {cut.first, cut.second}) {
          auto how = test::in(world);
          if (example) how.example_inputs = [&] { model->forward(drawn_for(0)); };
          parallel.push_back(initialize(model, config, how));
          parallel.back().check();
        }
        EXPECT_TRUE(torch::equal(full_tensor(cut.second->encoder->up->weight),
                                 plain.second->encoder->up->weight));
        EXPECT_EQ(is_placed(cut.second->head->weight), ranks > 1);
        for (int step = 0; step < 2; ++step) {
          for (auto pair : {plain, cut}) {
            torch::optim::SGD a(pair.first->parameters(), 0.05), b(pair.second->parameters(), 0.05);
            a.zero_grad();
            b.zero_grad();
            (pair.first->forward(drawn_for(step)).pow(2).mean() +
             pair.second->forward(drawn_for(step)).sin().mean())
                .backward();
            a.step();
            b.step();
          }
          parity::expect_weights(*cut.first, *plain.first);
          parity::expect_weights(*cut.second, *plain.second);
        }
        for (const PlanEntry& entry : parallel.back().plan().entries) {
          EXPECT_EQ(entry.global_shape, plain.second->named_parameters()[entry.parameter].sizes())
              << entry.parameter;
        }
      });
    }
  }
}

TEST(TwoModels, OverOtherRanksAreRefusedByName) {
  run_as_threads(4, [](World world) {
    const int row = world.rank() / 2;
    const auto pair =
        std::make_shared<Mesh>(std::vector{world.make_group("pair", {2 * row, 2 * row + 1})});
    const auto all = std::make_shared<Mesh>(std::vector{world.make_group("all", {0, 1, 2, 3})});
    const auto x = torch::ones({8});
    const auto a = distribute(x, pair, {Placement::shard(0)});
    const auto b = distribute(x, all, {Placement::shard(0)});
    EXPECT_THAT(
        test::error_of([&] { a + b; }),
        testing::AllOf(testing::HasSubstr("values of two meshes"),
                       testing::HasSubstr(row == 0 ? "ranks 0 1" : "ranks 2 3"),
                       testing::HasSubstr("ranks 0 1 2 3"), testing::HasSubstr("full_tensor")));
  });
}

}  // namespace
}  // namespace oslo
