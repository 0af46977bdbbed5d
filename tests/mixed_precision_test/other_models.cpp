// "amp" and "master_weights" of models that others made: Python's, by files, as shapes first; their
// checkpoints, and what `oslo::verify` says of them.
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include <memory>

#include "tests/exported_model_test/python_run.h"
#include "tests/mixed_precision_test/cases.h"
#include "tests/support/bf16.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

const char* const kMasters = R"("master_weights": true, )";

models::GPT2 make_small() {
  return make_seeded(7, [] { return models::GPT2(models::GPT2Options()); });
}

TEST(MixedPrecisionModels, ExportedOnesAreThoseUnderAGuardBitForBit) {
  for (const char* const name : {"gpt2", "vit", "conv", "twice"}) {
    SCOPED_TRACE(name);
    const PythonRun run(name);
    for (const char* const more : {"", kMasters}) {
      run_as_threads(1, [&](World world) {
        at::set_num_threads(1);
        const auto plain = run.load(), model = run.load();
        for (const auto& each : {plain, model}) each->to(torch::kFloat);
        torch::optim::AdamW optimizer(model->parameters()), of_plain(plain->parameters());
        initialize(model, Config::parse(amp_config(torch::kBFloat16, 1, 1, more)), in(world));
        for (int step = 0; step < 3; ++step) {
          std::vector<torch::Tensor> inputs = run.inputs(step);
          for (torch::Tensor& each : inputs) {
            if (each.is_floating_point()) each = each.to(torch::kFloat);
          }
          torch::Tensor target = run.target(step);
          if (target.is_floating_point()) target = target.to(torch::kFloat);
          const auto loss = [&](ExportedModule& of) {
            const torch::Tensor y = tensors_of(of.forward(values_of(inputs))).front();
            return target.is_floating_point()
                       ? at::mse_loss(y, target)
                       : at::cross_entropy_loss(y.flatten(0, -2), target.flatten());
          };
          optimizer.zero_grad();
          of_plain.zero_grad();
          torch::Tensor expected;
          {
            const UnderAutocast guard(torch::kBFloat16);
            expected = loss(*plain);
          }
          const torch::Tensor own = loss(*model);
          expect_same(own, expected, "loss");
          expected.backward();
          own.backward();
          expect_same_gradients(*model, *plain);
          optimizer.step();
          of_plain.step();
        }
        expect_same_weights(*model, *plain);
      });
    }
  }
}

TEST(MixedPrecisionModels, ScriptsAreThoseUnderAGuard) {
  const std::string path = OSLO_SOURCE_DIR "/tests/data/script/lm.pt";
  for (const int tensor : {1, 2}) {
    run_as_threads(tensor, [&](World world) {
      at::set_num_threads(1);
      const torch::jit::GraphOptimizerEnabledGuard off(false);
      torch::jit::Module script = torch::jit::load(path), plain = torch::jit::load(path),
                         wide = torch::jit::load(path);
      for (auto* each : {&script, &plain, &wide}) each->eval(), each->to(torch::kFloat);
      initialize(script, Config::parse(amp_config(torch::kBFloat16, tensor)), in(world));
      const torch::Tensor tokens = make_seeded(1, [] { return torch::randint(9, {2, 8}); });
      const auto run = [&](torch::jit::Module& of) {
        torch::Tensor y = of.forward({tokens}).toTensor();
        y.to(torch::kFloat).square().mean().backward();
        return y;
      };
      const torch::Tensor exact = run(wide);
      torch::Tensor expected;
      {
        const UnderAutocast guard(torch::kBFloat16);
        expected = plain.forward({tokens}).toTensor();
      }
      expected.to(torch::kFloat).square().mean().backward();
      const torch::Tensor own = run(script);
      EXPECT_EQ(own.scalar_type(), torch::kBFloat16);
      if (tensor == 1) expect_same(own, expected, "output");
      expect_rounded_alike(own, expected, exact, tensor, "output");
    });
  }
}

TEST(MixedPrecisionModels, WhatIsConstructedAsShapesIsTheSame) {
  for (const char* const more : {"", kMasters}) {
    for (const auto& [tensor, pipeline] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
      run_as_threads(tensor * pipeline, [&, tensor = tensor, pipeline = pipeline](World world) {
        at::set_num_threads(1);
        auto model = make_seeded(7, [] { return models::GPT2(models::GPT2Options()); });
        const Config config = Config::parse(amp_config(torch::kBFloat16, tensor, pipeline, more));
        const auto tokens = words(0).first;
        InitializeOptions how = in(world);
        how.example_inputs = [&] { model->forward(tokens); };
        initialize(model, config, how);
        auto shapes = make_seeded(7, [] {
          const DeferredInit guard;
          return models::GPT2(models::GPT2Options());
        });
        how.example_inputs = [&] { shapes->forward(tokens); };
        initialize(shapes, config, how);
        for (const auto& item : shapes->named_parameters()) {
          expect_same(item.value().detach(),
                      full_tensor(model->named_parameters()[item.key()]).detach(), item.key());
        }
        const torch::NoGradGuard no_grad;
        expect_same(shapes->forward(tokens), full_tensor(model->forward(tokens)), "output");
      });
    }
  }
}

/// Saved under one grid with masters, read over another, and by plain LibTorch.
TEST(MixedPrecisionModels, CheckpointsGoToOtherGridsAndToPlainLibTorch) {
  struct Saved {
    const char* keys;
    torch::Dtype type, kept;
  };
  for (const Saved& saved : {Saved{R"("amp": {"enabled": true}, )", torch::kFloat, torch::kFloat},
                             Saved{R"("master_weights": true, )", torch::kBFloat16, torch::kFloat},
                             Saved{"", torch::kBFloat16, torch::kBFloat16}}) {
    SCOPED_TRACE(saved.keys);
    for (const bool momentum : {false, true}) {
      const TemporaryDirectory folder;
      run_as_threads(2, [&](World world) {
        at::set_num_threads(1);
        const auto config = [&](int tensor, int pipeline) {
          return Config::parse(c10::str("{", saved.keys,
                                        R"("model_parallelism": {"tensor_parallel_size": )", tensor,
                                        R"(, "pipeline_parallel_size": )", pipeline, "}}"));
        };
        const auto optimizer_of =
            [&](models::GPT2& of) -> std::unique_ptr<torch::optim::Optimizer> {
          if (!momentum) return std::make_unique<torch::optim::AdamW>(of->parameters());
          return std::make_unique<torch::optim::SGD>(of->parameters(),
                                                     torch::optim::SGDOptions(0.1).momentum(0.9));
        };
        models::GPT2 first = make_small(), second = make_small(), one = make_small();
        for (auto* each : {&first, &second, &one}) (*each)->to(saved.type);
        const auto of_first = optimizer_of(first), of_second = optimizer_of(second);
        const auto parallel = initialize(first, config(2, 1), in(world));
        step(parallel, first, *of_first, 0);
        parallel.save_parallelized(folder.path() / "parts",
                                   SaveOptions().optimizer(of_first.get()));
        parallel.save_parallelized(folder.path() / "whole", SaveOptions().merge_checkpoints(true));
        InitializeOptions how = in(world);
        how.example_inputs = [&] { second->forward(words(0).first); };
        const auto other = initialize(second, config(1, 2), how);
        other.from_parallelized(folder.path() / "parts", LoadOptions().optimizer(of_second.get()));
        for (const auto& item : first->named_parameters()) {
          EXPECT_EQ(item.value().scalar_type(), saved.kept);
          const torch::Tensor there = full_tensor(second->named_parameters()[item.key()]).detach();
          EXPECT_TRUE(torch::equal(full_tensor(item.value()).detach(), there)) << item.key();
        }
        step(parallel, first, *of_first, 1);
        step(other, second, *of_second, 1);
        for (const auto& item : first->named_parameters()) {
          const torch::Tensor
              a = full_tensor(item.value()).detach().to(torch::kFloat),
              b = full_tensor(second->named_parameters()[item.key()]).detach().to(torch::kFloat);
          EXPECT_LE((a - b).norm().item<float>(), 0.02 * a.norm().item<float>() + 0.05)
              << item.key();
        }
      });
    }
  }
}

TEST(MixedPrecisionModels, VerifyComparesWithTheSamePrecision) {
  struct Verified {
    const char* keys;
    torch::Dtype type;
  };
  for (const Verified& each :
       {Verified{R"("amp": {"enabled": true}, )", torch::kFloat},
        Verified{R"("amp": {"enabled": true, "dtype": "float16"}, )", torch::kFloat},
        Verified{R"("amp": {"enabled": true}, "master_weights": true, )", torch::kFloat},
        Verified{R"("master_weights": true, )", torch::kBFloat16},
        Verified{"", torch::kBFloat16}}) {
    SCOPED_TRACE(each.keys);
    for (const int tensor : {1, 2}) {
      run_as_threads(tensor, [&](World world) {
        at::set_num_threads(1);
        auto model = make_small(), plain = make_small();
        for (auto* of : {&model, &plain}) (*of)->to(each.type);
        const auto parallel = initialize(
            model,
            Config::parse(c10::str(
                "{", each.keys, R"("model_parallelism": {"tensor_parallel_size": )", tensor, "}}")),
            in(world));
        const Verification found = verify(parallel, plain, words(0).first);
        EXPECT_TRUE(found.equal()) << found.to_string();
        EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
        EXPECT_FALSE(parallel.plan().precision.empty());
        // It would see another weight.
        {
          const torch::NoGradGuard no_grad;
          plain->parameters()[3].add_(0.5);
        }
        EXPECT_FALSE(verify(parallel, plain, words(0).first).equal());
      });
    }
  }
}

TEST(MixedPrecisionModels, AScalerOfTwoModels) {
  run_as_threads(1, [](World world) {
    at::set_num_threads(1);
    auto a = make_small(), b = make_small(), plain_a = make_small(), plain_b = make_small();
    const auto first = initialize(a, Config::parse(amp_config(torch::kHalf)), in(world));
    const auto second =
        initialize(b, Config::parse(amp_config(torch::kHalf, 1, 1, kMasters)), in(world));
    torch::optim::SGD of_a(a->parameters(), 0.1), of_b(b->parameters(), 0.1),
        of_plain_a(plain_a->parameters(), 0.1), of_plain_b(plain_b->parameters(), 0.1);
    const double scale = 1024;
    GradScaler scaler({&first, &second}, GradScalerOptions().init_scale(scale));
    for (int step = 0; step < 3; ++step) {
      const auto [tokens, labels] = words(step);
      for (auto* each : {&of_a, &of_b, &of_plain_a, &of_plain_b}) each->zero_grad();
      scaler.scale(next_word(a->forward(tokens), labels) + next_word(b->forward(tokens), labels))
          .backward();
      torch::Tensor loss;
      {
        const UnderAutocast guard(torch::kHalf);
        loss = next_word(plain_a->forward(tokens), labels) +
               next_word(plain_b->forward(tokens), labels);
      }
      (loss * scale).backward();
      for (auto* each : {&plain_a, &plain_b}) {
        for (const torch::Tensor& parameter : (*each)->parameters()) {
          parameter.grad().mul_(1 / scale);
        }
      }
      EXPECT_TRUE(scaler.step(of_a));
      EXPECT_TRUE(scaler.step(of_b));
      scaler.update();
      of_plain_a.step();
      of_plain_b.step();
      expect_same_gradients(*a, *plain_a);
      expect_same_gradients(*b, *plain_b);
    }
    expect_same_weights(*a, *plain_a);
    expect_same_weights(*b, *plain_b);
  });
}

/// A copy that `clone` makes is a model of plain LibTorch, or computes as the first does.
TEST(MixedPrecisionModels, AClone) {
  run_as_threads(1, [](World world) {
    at::set_num_threads(1);
    const auto make = [] {
      return torch::nn::Sequential(torch::nn::Linear(5, 7), torch::nn::GELU(),
                                   torch::nn::Linear(7, 3));
    };
    torch::nn::Sequential model = make_seeded(2, make), plain = make_seeded(2, make);
    initialize(model, Config::parse(amp_config(torch::kBFloat16, 1, 1, kMasters)), in(world));
    const torch::Tensor x = make_seeded(1, [] { return torch::randn({4, 5}); });
    model->forward(x).sum().backward();
    const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
    const auto plain_copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone());
    torch::optim::SGD optimizer(copy->parameters(), 0.1), of_plain(plain_copy->parameters(), 0.1);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      of_plain.zero_grad();
      torch::Tensor expected;
      {
        const UnderAutocast guard(torch::kBFloat16);
        expected = plain_copy->forward(x);
        expected.sum().backward();
      }
      const torch::Tensor own = copy->forward(x);
      own.sum().backward();
      expect_same(own, expected, "output");
      expect_same_gradients(*copy, *plain_copy);
      optimizer.step();
      of_plain.step();
    }
    expect_same_weights(*copy, *plain_copy);
    expect_same_weights(*model, *plain);
  });
}

}  // namespace
}  // namespace oslo::test
