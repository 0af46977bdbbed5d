#include "parallelizers/memory/saved_tensors.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "tests/models/gpt2.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"
#include "tests/support/tensor_ranks.h"

namespace oslo::test {
namespace {

using torch::Tensor;
using torch::autograd::Engine;

std::vector<Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad().clone());
  return gradients;
}

/// A small net whose operators save inputs, results, statistics and parameters.
torch::nn::Sequential net() {
  return make_seeded(7, [] {
    torch::nn::Sequential made(
        torch::nn::Linear(7, 11), torch::nn::Tanh(), torch::nn::Linear(11, 5),
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})), torch::nn::Softmax(1));
    made->to(torch::kDouble);
    return made;
  });
}

Tensor input() {
  return make_seeded(8, [] { return torch::randn({3, 7}, torch::kDouble); });
}

/// What a scope saw.
struct Counts {
  std::atomic<int> packed = 0, unpacked = 0;
};

PackSavedTensor copying(Counts& counts) {
  return [&counts](const Tensor& saved) {
    ++counts.packed;
    return [&counts, copy = saved.clone()] {
      ++counts.unpacked;
      return copy;
    };
  };
}

TEST(SavedTensors, PassThroughThePackAndTheGradientsAreTheSame) {
  torch::nn::Sequential model = net();
  model->forward(input()).pow(3).sum().backward();
  const auto expected = gradients_of(*model);
  for (const bool keeps : {false, true}) {
    model->zero_grad();
    Counts counts;
    Tensor loss;
    {
      const SavedTensorScope scope([&](const Tensor& saved) -> UnpackSavedTensor {
        EXPECT_EQ(saved.grad_fn(), nullptr);
        if (!keeps) return copying(counts)(saved);
        ++counts.packed;
        return {};
      });
      loss = model->forward(input()).pow(3).sum();
    }
    EXPECT_GT(counts.packed, 8);
    EXPECT_EQ(counts.unpacked, 0);
    const int packed = counts.packed;
    loss.backward();  // after the scope
    EXPECT_EQ(counts.packed, packed);
    EXPECT_GE(counts.unpacked, keeps ? 0 : packed - 1);
    const auto gradients = gradients_of(*model);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(gradients[i], expected[i])) << i;
    }
  }
}

TEST(SavedTensors, TheInnermostScopeIsAsked) {
  const Tensor x = input().requires_grad_();
  Counts outer, inner;
  {
    const SavedTensorScope first(copying(outer));
    (x * x).sum();
    const int seen = outer.packed;
    EXPECT_EQ(seen, 2);
    {
      const SavedTensorScope second(copying(inner));
      (x * x).sum();
    }
    EXPECT_EQ(inner.packed, 2);
    EXPECT_EQ(outer.packed, seen);
    x.exp();
    EXPECT_EQ(outer.packed, seen + 1);
  }
  x.exp();
  EXPECT_EQ(outer.packed + inner.packed, 5);
}

TEST(SavedTensors, BelongToTheThreadThatSaves) {
  const Tensor x = input().requires_grad_();
  Counts counts;
  const SavedTensorScope scope(copying(counts));
  std::thread([&] { x.exp(); }).join();
  EXPECT_EQ(counts.packed, 0);
  const Tensor y = x.exp();
  std::thread([&] { y.sum().backward(); }).join();
  EXPECT_EQ(counts.unpacked, 1);
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().exp()));
}

TEST(SavedTensors, AWriteToOneIsFoundAsOnOneDevice) {
  for (const bool keeps : {false, true}) {
    for (const bool hooked : {false, true}) {
      Counts counts;
      const Tensor x = input().requires_grad_(), w = input();
      Tensor y;
      const auto use = [&] { y = (x * w).sum(); };
      if (hooked) {
        const SavedTensorScope scope([&](const Tensor& saved) {
          return keeps ? UnpackSavedTensor() : copying(counts)(saved);
        });
        use();
      } else {
        use();
      }
      w.add_(1);
      std::string message;
      try {
        y.backward();
      } catch (const c10::Error& error) {
        message = error.what();
      } catch (const Error& error) {
        message = error.what();
      }
      expect_contains(message, {"modified by an inplace operation", "version 1"});
    }
  }
}

TEST(SavedTensors, OfAResultKeepNoGraphAlive) {
  const Tensor x = input().requires_grad_();
  c10::weak_intrusive_ptr<c10::StorageImpl> memory{c10::intrusive_ptr<c10::StorageImpl>()};
  {
    const SavedTensorScope scope([](const Tensor&) { return UnpackSavedTensor(); });
    const Tensor y = x.exp();  // exp saves its result
    memory = c10::weak_intrusive_ptr<c10::StorageImpl>(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(y.storage().unsafeGetStorageImpl()));
    EXPECT_FALSE(memory.expired());
  }
  EXPECT_TRUE(memory.expired());
}

TEST(SavedTensors, ThatComeBackAsSomethingElseAreRefused) {
  const Tensor x = input().requires_grad_();
  const std::vector<std::pair<UnpackSavedTensor, std::string>> wrong{
      {[] { return Tensor(); }, "undefined"},
      {[] {
         return torch::zeros({2, 7}, torch::kDouble);
       },
       "shape [2, 7]"},
      {[] {
         return torch::zeros({3, 7}, torch::kFloat);
       },
       "float"}};
  for (const auto& [unpack, part] : wrong) {
    Tensor y;
    {
      const SavedTensorScope scope([&unpack = unpack](const Tensor&) { return unpack; });
      y = x.exp().sum();
    }
    expect_contains(error_of([&] { y.backward(); }), {"saved", part});
  }
}

Engine* installed_engine = nullptr;

TEST(SavedTensors, AnotherEngineIsRefusedByName) {
  installed_engine = &Engine::get_default_engine();
  torch::autograd::set_default_engine_stub(&Engine::get_base_engine);
  const std::string message =
      error_of([] { SavedTensorScope([](const Tensor&) { return UnpackSavedTensor(); }); });
  torch::autograd::set_default_engine_stub([]() -> Engine& { return *installed_engine; });
  expect_contains(message, {"another autograd engine", "Python"});
  SavedTensorScope([](const Tensor&) { return UnpackSavedTensor(); });
}

TEST(SavedTensors, OfAParallelModelAreThisRanksParts) {
  const auto loss_of = [](models::GPT2& model) {
    const Tensor tokens = torch::arange(14).view({2, 7});
    return torch::nn::functional::cross_entropy(model->forward(tokens).view({14, -1}),
                                                tokens.view(-1));
  };
  models::GPT2Options small;
  small.vocabulary = 19;
  small.hidden = 12;
  small.heads = 3;
  const auto make = [&] { return make_seeded(3, [&] { return models::GPT2(small); }); };
  models::GPT2 plain = make();
  loss_of(plain).backward();
  run_as_threads(3, [&](World world) {
    models::GPT2 model = make();
    const auto parallel = initialize(
        model,
        Config::parse(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 3}})"),
        in(world));
    Counts counts;
    Tensor loss;
    {
      const SavedTensorScope scope(copying(counts));
      loss = loss_of(model);
    }
    loss.backward();
    EXPECT_GT(counts.packed, 30);
    for (const auto& item : plain->named_parameters()) {
      const Tensor ours = full_tensor(model->named_parameters()[item.key()].grad());
      EXPECT_TRUE(torch::allclose(ours, item.value().grad(), 1e-4, 1e-6)) << item.key();
    }
  });
}

}  // namespace
}  // namespace oslo::test
