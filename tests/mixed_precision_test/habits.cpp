// What ordinary programs do beside forward, backward and step, with "amp" on one rank: the same
// bits as plain LibTorch has under a guard around forward and loss.
#include <c10/core/InferenceMode.h>

#include <functional>
#include <sstream>
#include <thread>

#include "tests/mixed_precision_test/cases.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace {

using Tensors = std::vector<torch::Tensor>;

/// An embedding that is the head, too; convolution, norms, attention by hand, a buffer.
struct HabitImpl : torch::nn::Module {
  HabitImpl()
      : table(register_module("table", torch::nn::Embedding(11, 12))),
        conv(register_module("conv",
                             torch::nn::Conv1d(torch::nn::Conv1dOptions(12, 12, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm1d(12))),
        up(register_module("up", torch::nn::Linear(12, 20))),
        down(register_module("down", torch::nn::Linear(20, 12))),
        last(register_module("last", torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})))) {}

  torch::Tensor forward(const torch::Tensor& tokens) { return body(table(tokens)); }
  torch::Tensor body(const torch::Tensor& embedded) {
    torch::Tensor h = norm(conv(embedded.transpose(1, 2))).transpose(1, 2);
    const torch::Tensor weights = torch::softmax(h.matmul(h.transpose(1, 2)) / 3.5, -1);
    h = h + weights.matmul(h);
    h = h + down(torch::gelu(up(h)));
    if (fails) throw std::runtime_error("on purpose");
    return torch::nn::functional::linear(last(h), table->weight);
  }

  torch::nn::Embedding table;
  torch::nn::Conv1d conv;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear up, down;
  torch::nn::LayerNorm last;
  bool fails = false;
};
TORCH_MODULE(Habit);

torch::Tensor tokens(int step) {
  return make_seeded(300 + step, [] { return torch::randint(11, {3, 5}); });
}

/// Runs what is forward: under a guard, or as it is.
using Region = std::function<torch::Tensor(const std::function<torch::Tensor()>&)>;

struct Side {
  Habit model;
  Region region;

  torch::Tensor loss(int step, double scale = 1) const {
    return region([&] {
      const torch::Tensor words = tokens(step);
      return torch::nn::functional::cross_entropy(model.ptr()->forward(words).flatten(0, 1),
                                                  words.roll(1, 1).flatten()) *
             scale;
    });
  }
};

using Program = std::function<Tensors(Side&)>;

void expect_bits(const Program& program, const std::string& what, bool masters = true) {
  SCOPED_TRACE(what);
  for (const torch::Dtype type : {torch::kBFloat16, torch::kHalf}) {
    for (const bool master : {false, true}) {
      if (master && !masters) continue;
      SCOPED_TRACE(c10::str(type, master ? " with masters" : ""));
      run_as_threads(1, [&](World world) {
        at::set_num_threads(1);
        const auto make = [] { return Habit(); };
        Side plain{make_seeded(2, make), [type](const auto& run) {
                     const UnderAutocast guard(type);
                     return run();
                   }};
        Side own{make_seeded(2, make), [](const auto& run) { return run(); }};
        initialize(
            own.model,
            Config::parse(amp_config(type, 1, 1, master ? R"("master_weights": true, )" : "")),
            in(world));
        const Tensors expected = program(plain);
        const Tensors actual = program(own);
        ASSERT_EQ(actual.size(), expected.size());
        for (size_t i = 0; i < actual.size(); ++i) {
          expect_same(actual[i], expected[i], c10::str("value ", i));
        }
        expect_same_gradients(*own.model, *plain.model);
        expect_same_weights(*own.model, *plain.model);
        const auto buffers = plain.model->named_buffers();
        for (const auto& item : own.model->named_buffers()) {
          expect_same(item.value(), buffers[item.key()], item.key());
        }
      });
    }
  }
}

TEST(MixedPrecisionHabits, EvaluationBetweenSteps) {
  expect_bits(
      [](Side& side) {
        torch::optim::AdamW optimizer(side.model->parameters());
        Tensors seen;
        for (int step = 0; step < 4; ++step) {
          optimizer.zero_grad();
          side.loss(step).backward();
          side.model->eval();
          {
            const torch::NoGradGuard no_grad;
            seen.push_back(side.loss(9));
          }
          {
            const c10::InferenceMode inference;
            seen.push_back(side.loss(8).clone());
          }
          side.model->train();
          seen.push_back(side.loss(7).detach());  // recorded, and never run backward
          optimizer.step();
        }
        return seen;
      },
      "evaluation");
}

TEST(MixedPrecisionHabits, TwoOptimizersAndTwoLosses) {
  expect_bits(
      [](Side& side) {
        Tensors first{side.model->table->weight}, rest;
        for (const torch::Tensor& each : side.model->parameters()) {
          if (!each.is_same(first[0])) rest.push_back(each);
        }
        torch::optim::SGD one(first, torch::optim::SGDOptions(0.1).momentum(0.9));
        torch::optim::Adam two(rest, torch::optim::AdamOptions(1e-2));
        Tensors seen;
        for (int step = 0; step < 3; ++step) {
          one.zero_grad();
          const torch::Tensor a = side.loss(step);
          a.backward();
          one.step();  // between two backwards of the step
          two.zero_grad();
          const torch::Tensor b = side.loss(step + 10);
          b.backward();
          two.step();
          seen.push_back(a.detach());
          seen.push_back(b.detach());
        }
        return seen;
      },
      "two optimizers");
}

TEST(MixedPrecisionHabits, ABackwardTwiceAndGradientsByGrad) {
  expect_bits(
      [](Side& side) {
        const torch::Tensor a = side.loss(0);
        a.backward({}, /*retain_graph=*/true);
        a.backward();
        const torch::Tensor b = side.loss(1);
        Tensors seen = torch::autograd::grad({b}, side.model->parameters());
        for (torch::Tensor& each : seen) each = full_tensor(each).detach();
        return seen;
      },
      "twice");
}

TEST(MixedPrecisionHabits, AGradientPenalty) {
  expect_bits(
      [](Side& side) {
        torch::optim::SGD optimizer(side.model->parameters(), torch::optim::SGDOptions(0.05));
        Tensors seen;
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          const torch::Tensor loss = side.loss(step);
          const auto gradients =
              torch::autograd::grad({loss}, side.model->parameters(), {},
                                    /*retain_graph=*/true, /*create_graph=*/true);
          torch::Tensor penalty;
          for (const torch::Tensor& each : gradients) {
            const torch::Tensor own = each.square().sum();
            penalty = penalty.defined() ? penalty + own : own;
          }
          (loss + penalty.sqrt() * 0.1).backward();
          optimizer.step();
          seen.push_back(penalty.detach());
        }
        return seen;
      },
      "penalty of weights");
  expect_bits(
      [](Side& side) {
        const torch::Tensor x = make_seeded(4, [] {
                                  return torch::randn({3, 5, 12});
                                }).requires_grad_();
        const torch::Tensor y = side.region([&] { return side.model->body(x).square().mean(); });
        const torch::Tensor slope = torch::autograd::grad({y}, {x}, {}, true, true)[0];
        side.region([&] { return (slope.norm(2, {1, 2}) - 1).square().mean(); }).backward();
        return Tensors{slope.detach(), y.detach(), x.grad()};
      },
      "penalty of inputs");
}

TEST(MixedPrecisionHabits, AnAverageOfWeights) {
  expect_bits(
      [](Side& side) {
        torch::optim::AdamW optimizer(side.model->parameters());
        Tensors average;
        for (const torch::Tensor& each : side.model->parameters()) {
          average.push_back(each.detach().clone());
        }
        Tensors seen;
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          side.loss(step).backward();
          optimizer.step();
          const torch::NoGradGuard no_grad;
          const Tensors now = side.model->parameters();
          for (size_t i = 0; i < now.size(); ++i) {
            average[i].mul_(0.9).add_(now[i], 0.1);
          }
          // Evaluated by the average, and trained on by what there was.
          Tensors kept;
          for (size_t i = 0; i < now.size(); ++i) {
            kept.push_back(now[i].clone());
            now[i].copy_(average[i]);
          }
          seen.push_back(side.loss(9));
          for (size_t i = 0; i < now.size(); ++i) now[i].copy_(kept[i]);
        }
        for (const torch::Tensor& each : average) seen.push_back(full_tensor(each));
        return seen;
      },
      "average");
}

TEST(MixedPrecisionHabits, WeightsChangedByOtherWays) {
  expect_bits(
      [](Side& side) {
        Tensors seen;
        const auto look = [&] {
          seen.push_back(side.loss(1).detach());
          const torch::NoGradGuard no_grad;
          seen.push_back(side.loss(2));
        };
        look();
        side.model->up->weight.data().mul_(1.5);
        look();
        torch::Tensor kept = side.model->up->weight.data();
        kept.add_(0.01);
        look();
        kept.add_(0.02);  // by a tensor from before
        look();
        side.model->up->weight.detach().narrow(0, 1, 3).zero_();
        look();
        side.model->down->weight.set_data(side.model->down->weight.detach() * 2);
        look();
        {
          const torch::NoGradGuard no_grad;
          side.model->conv->weight.fill_(0.125);
          side.model->table->weight[2].fill_(0.5);
        }
        look();
        // All of them read from bytes.
        std::stringstream bytes;
        torch::save(side.model->up, bytes);
        {
          const torch::NoGradGuard no_grad;
          side.model->up->weight.zero_();
        }
        look();
        torch::load(side.model->up, bytes);
        look();
        side.loss(3).backward();
        return seen;
      },
      "changed");
}

TEST(MixedPrecisionHabits, AnExceptionInAForward) {
  expect_bits(
      [](Side& side) {
        torch::optim::AdamW optimizer(side.model->parameters());
        Tensors seen;
        for (int step = 0; step < 4; ++step) {
          optimizer.zero_grad();
          side.model->fails = step % 2 == 1;
          try {
            const torch::Tensor loss = side.loss(step);
            loss.backward();
            optimizer.step();
            seen.push_back(loss.detach());
          } catch (const std::runtime_error&) {
          }
          side.model->fails = false;
        }
        return seen;
      },
      "exception");
}

TEST(MixedPrecisionHabits, ThreadsOfTheProgram) {
  expect_bits(
      [](Side& side) {
        Tensors seen(3);
        side.model->eval();  // no running statistics
        std::vector<std::thread> threads;
        for (int i = 0; i < 3; ++i) {
          threads.emplace_back([&, i] {
            at::set_num_threads(1);
            const torch::NoGradGuard no_grad;
            seen[i] = side.loss(i);
          });
          threads.back().join();  // LibTorch's cache is one for all
        }
        std::thread other([&] { side.loss(5).backward(); });
        other.join();
        return seen;
      },
      "threads");
}

TEST(MixedPrecisionHabits, FrozenWeightsAndHooks) {
  expect_bits(
      [](Side& side) {
        side.model->up->weight.set_requires_grad(false);
        int called = 0;
        side.model->down->weight.register_hook([&](torch::Tensor gradient) {
          ++called;
          return gradient * 2;
        });
        Tensors seen;
        for (int step = 0; step < 2; ++step) {
          const torch::Tensor loss = side.loss(step);
          loss.backward();
          seen.push_back(loss.detach());
          side.model->up->weight.set_requires_grad(step == 0);
        }
        seen.push_back(torch::tensor(called));
        return seen;
      },
      "frozen");
}

TEST(MixedPrecisionHabits, ClippingAndAccumulation) {
  expect_bits(
      [](Side& side) {
        torch::optim::SGD optimizer(side.model->parameters(),
                                    torch::optim::SGDOptions(0.1).momentum(0.9));
        Tensors seen;
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad(/*set_to_none=*/step == 1);
          for (int micro = 0; micro < 3; ++micro) side.loss(3 * step + micro, 1.0 / 3).backward();
          seen.push_back(
              torch::tensor(torch::nn::utils::clip_grad_norm_(side.model->parameters(), 0.5)));
          optimizer.step();
        }
        return seen;
      },
      "clipping");
}

/// Forwards whose losses are added and go backward together are one region.
TEST(MixedPrecisionHabits, SeveralForwardsBeforeOneBackward) {
  expect_bits(
      [](Side& side) {
        const torch::Tensor words = tokens(1);
        const torch::Tensor loss = side.region([&] {
          const torch::Tensor a = side.model->forward(words),
                              b = side.model->forward(words.flip(1));
          return torch::cosine_embedding_loss(a.flatten(1), b.flatten(1), torch::ones(3)) +
                 (a - b).square().mean();
        });
        loss.backward();
        return Tensors{loss.detach()};
      },
      "siamese");
}

TEST(MixedPrecisionHabits, InferenceFirstAndTrainingThen) {
  expect_bits(
      [](Side& side) {
        Tensors seen;
        side.model->eval();
        {
          const c10::InferenceMode inference;
          seen.push_back(side.loss(8).clone());
        }
        side.model->train();
        torch::optim::RMSprop optimizer(side.model->parameters());
        for (int step = 0; step < 2; ++step) {
          optimizer.zero_grad();
          side.loss(step).backward();
          optimizer.step();
          const c10::InferenceMode inference;
          seen.push_back(side.loss(8).clone());
        }
        return seen;
      },
      "inference");
}

TEST(MixedPrecisionHabits, ThreadsAtTheSameTime) {
  for (const char* const more : {"", R"("master_weights": true, )"}) {
    run_as_threads(1, [&](World world) {
      at::set_num_threads(1);
      Side plain{make_seeded(2, [] { return Habit(); }), [](const auto& run) {
                   const UnderAutocast guard(torch::kBFloat16);
                   return run();
                 }};
      Side own{make_seeded(2, [] { return Habit(); }), [](const auto& run) { return run(); }};
      initialize(own.model, Config::parse(amp_config(torch::kBFloat16, 1, 1, more)), in(world));
      for (Side* each : {&plain, &own}) each->model->eval();
      constexpr int kThreads = 4, kEach = 5;
      Tensors seen(kThreads * kEach);
      std::vector<std::thread> threads;
      for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
          at::set_num_threads(1);
          for (int k = 0; k < kEach; ++k) {
            const torch::Tensor loss = own.loss(i * kEach + k);
            if (k % 2 == 0) torch::autograd::grad({loss}, {own.model->up->weight});
            seen[i * kEach + k] = loss.detach();
          }
        });
      }
      for (std::thread& each : threads) each.join();
      for (int i = 0; i < kThreads * kEach; ++i) {
        expect_same(seen[i], plain.loss(i).detach(), c10::str("thread ", i / kEach));
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test
