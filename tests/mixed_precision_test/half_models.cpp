// Models that their author turned into half, without master weights: they stay half, and their
// gradients are in fp32 unless 'reduce_dtype' says otherwise.
#include <functional>
#include <memory>

#include "tests/mixed_precision_test/cases.h"
#include "tests/support/bf16.h"

namespace oslo::test {
namespace {

std::string half_config(const std::string& reduce, int tensor = 1, int pipeline = 1) {
  return c10::str(reduce.empty() ? "{" : R"({"reduce_dtype": ")" + reduce + R"(", )",
                  R"("model_parallelism": {"tensor_parallel_size": )", tensor,
                  R"(, "pipeline_parallel_size": )", pipeline, "}}");
}

/// Each of its gradients is the sum of what it is given.
struct OnesImpl : torch::nn::Module {
  explicit OnesImpl(torch::Dtype type)
      : up(register_module("up", torch::nn::Linear(torch::nn::LinearOptions(3, 5).bias(false)))),
        down(register_module("down",
                             torch::nn::Linear(torch::nn::LinearOptions(3, 5).bias(false)))) {
    to(type);
  }
  torch::Tensor forward(const torch::Tensor& x) { return up(x).sum() + down(x).sum(); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Ones);

constexpr int kPasses = 512;

/// Acceptance S4. 512 + 512 in fp32; in bf16 each rank stops at 256.
class HalfGradients : public testing::TestWithParam<std::tuple<std::string, torch::Dtype, int>> {};

double expected_sum(const std::string& reduce, torch::Dtype type) {
  if (reduce.empty() || reduce == "float32") return 1024;
  return type == torch::kBFloat16 ? 512 : 1024;  // fp16 holds 512
}

TEST_P(HalfGradients, AddUpOverMicroBatchesAndDataRanks) {
  const auto& [reduce, type, tensor] = GetParam();
  run_as_threads(2 * tensor, [&, reduce = reduce, type = type, tensor = tensor](World world) {
    at::set_num_threads(1);
    Ones model = make_seeded(1, [type = type] { return Ones(type); });
    const auto parallel = initialize(model, Config::parse(half_config(reduce, tensor)), in(world));
    DistributedDataParallel<Ones> ddp(model, parallel.mpu().get_data_parallel_group());
    const torch::Tensor x = torch::ones({1, 3}, type);
    const auto run = [&] {
      {
        const auto guard = ddp.no_sync();
        for (int i = 1; i < kPasses; ++i) ddp.forward(x).backward();
      }
      ddp.forward(x).backward();
    };
    for (const bool in_place : {false, true}) {
      run();
      const torch::Dtype wide = reduce.empty() || reduce == "float32" ? torch::kFloat : type;
      for (const torch::Tensor& parameter : model->parameters()) {
        EXPECT_EQ(parameter.scalar_type(), type);
        EXPECT_EQ(parameter.grad().scalar_type(), wide);
        const torch::Tensor sum = 2 * full_tensor(parameter.grad()).to(torch::kFloat);
        EXPECT_TRUE(sum.eq(expected_sum(reduce, type)).all().item<bool>()) << sum;
      }
      model->zero_grad(in_place);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(S4, HalfGradients,
                         testing::Values(std::tuple("", torch::kBFloat16, 1),
                                         std::tuple("float32", torch::kBFloat16, 2),
                                         std::tuple("bfloat16", torch::kBFloat16, 1),
                                         std::tuple("bfloat16", torch::kBFloat16, 2),
                                         std::tuple("", torch::kHalf, 1),
                                         std::tuple("float16", torch::kHalf, 2)));

models::GPT2 make_gpt2_of_halves(torch::Dtype type) {
  auto model = make_seeded(7, [] { return models::GPT2(models::GPT2Options()); });
  model->to(type);
  return model;
}

using Parameters = std::vector<torch::Tensor>;
struct Kind {
  const char* name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)> make;
};

template <typename Optimizer, typename Options>
Kind kind(const char* name, Options options) {
  return {name,
          [options](const Parameters& of) { return std::make_unique<Optimizer>(of, options); }};
}

/// All that LibTorch has.
std::vector<Kind> optimizers() {
  namespace optim = torch::optim;
  return {
      kind<optim::SGD>("SGD", optim::SGDOptions(0.1)),
      kind<optim::SGD>("SGD with all",
                       optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(true)),
      kind<optim::Adam>("Adam", optim::AdamOptions(1e-2).weight_decay(0.01)),
      kind<optim::AdamW>("AdamW", optim::AdamWOptions(1e-2).amsgrad(true)),
      kind<optim::RMSprop>("RMSprop", optim::RMSpropOptions(1e-3)),
      kind<optim::RMSprop>(
          "RMSprop with all",
          optim::RMSpropOptions(1e-3).momentum(0.9).centered(true).weight_decay(0.01).eps(1e-3)),
      kind<optim::Adagrad>("Adagrad", optim::AdagradOptions(1e-2).weight_decay(0.01)),
      kind<optim::LBFGS>("LBFGS", optim::LBFGSOptions(0.05).max_iter(3)),
      kind<optim::LBFGS>("LBFGS with a search",
                         optim::LBFGSOptions(0.05).max_iter(3).line_search_fn("strong_wolfe"))};
}

struct HalfGrid {
  int tensor, data;
  bool before;  ///< optimizers are made before initialize
};

class HalfOptimizers : public testing::TestWithParam<HalfGrid> {};

/// LibTorch's optimizers take a gradient in fp32 of a parameter in bf16: what is learned is as
/// near to what fp32 learns as plain LibTorch's is.
TEST_P(HalfOptimizers, LearnAsPlainLibTorchs) {
  const auto [tensor, data, before] = GetParam();
  for (const Kind& kind : optimizers()) {
    SCOPED_TRACE(kind.name);
    // It flattens parameters, which is refused where they are cut.
    if (tensor > 1 && std::string(kind.name).starts_with("LBFGS")) continue;
    run_as_threads(tensor * data, [&, tensor = tensor, data = data, before = before](World world) {
      at::set_num_threads(1);
      auto first = make_gpt2_of_halves(torch::kBFloat16),
           exact = make_gpt2_of_halves(torch::kBFloat16),
           plain = make_gpt2_of_halves(torch::kBFloat16),
           model = make_gpt2_of_halves(torch::kBFloat16);
      exact->to(torch::kFloat);
      std::unique_ptr<torch::optim::Optimizer> own;
      if (before) own = kind.make(model->parameters());
      const auto parallel = initialize(model, Config::parse(half_config("", tensor)), in(world));
      if (!before) own = kind.make(model->parameters());
      DistributedDataParallel<models::GPT2> ddp(model, parallel.mpu().get_data_parallel_group());
      const auto of_exact = kind.make(exact->parameters()),
                 of_plain = kind.make(plain->parameters());
      const auto loss = [&](const torch::Tensor& logits, const torch::Tensor& labels) {
        return next_word(logits.to(torch::kFloat), labels);
      };
      for (int step = 0; step < 4; ++step) {
        // Each data rank has all of the batch: the mean is one device's.
        const auto [tokens, labels] = words(step);
        of_exact->step([&, &tokens = tokens, &labels = labels] {
          of_exact->zero_grad();
          const torch::Tensor value = loss(exact->forward(tokens), labels);
          value.backward();
          return value;
        });
        of_plain->step([&, &tokens = tokens, &labels = labels] {
          of_plain->zero_grad();
          const torch::Tensor value = loss(plain->forward(tokens), labels);
          value.backward();
          return value;
        });
        own->step([&, &tokens = tokens, &labels = labels] {
          own->zero_grad();
          const torch::Tensor value = loss(ddp.forward(tokens), labels);
          value.backward();
          return value;
        });
      }
      const auto start = first->named_parameters(), of_one = plain->named_parameters(),
                 of_fp32 = exact->named_parameters();
      for (const auto& item : model->named_parameters()) {
        EXPECT_EQ(item.value().scalar_type(), torch::kBFloat16) << item.key();
        EXPECT_EQ(item.value().grad().scalar_type(), torch::kFloat) << item.key();
        const auto learned = [&](const torch::Tensor& weight) {
          return full_tensor(weight).detach().to(torch::kFloat) -
                 start[item.key()].detach().to(torch::kFloat);
        };
        expect_rounded_alike(learned(item.value()), learned(of_one[item.key()]),
                             learned(of_fp32[item.key()]), tensor, "learned of " + item.key(),
                             0.05);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, HalfOptimizers,
                         testing::Values(HalfGrid{1, 1, true}, HalfGrid{2, 1, true},
                                         HalfGrid{1, 2, false}, HalfGrid{3, 1, false}));

/// Sparse gradients of an embedding add up in fp32, too.
TEST(HalfModels, SparseGradients) {
  run_as_threads(1, [](World world) {
    at::set_num_threads(1);
    const auto make = [] {
      torch::nn::Embedding table(torch::nn::EmbeddingOptions(7, 5).sparse(true));
      table->to(torch::kBFloat16);
      return table;
    };
    torch::nn::Embedding model = make_seeded(3, make), plain = make_seeded(3, make);
    initialize(model, Config::parse("{}"), in(world));
    const auto optimize = [](torch::nn::Embedding of) {
      torch::optim::SGD optimizer(of->parameters(), torch::optim::SGDOptions(0.5));
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        of->forward(torch::tensor({1, 3, 1})).to(torch::kFloat).square().sum().backward();
        optimizer.step();
      }
    };
    optimize(model);
    optimize(plain);
    EXPECT_TRUE(model->weight.grad().is_sparse());
    EXPECT_EQ(model->weight.grad().scalar_type(), torch::kFloat);
    EXPECT_EQ(model->weight.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(torch::allclose(model->weight, plain->weight, 1e-2, 1e-2));
  });
}

/// A scaler is for what fp16 cannot hold; gradients in fp32 keep what it saves.
TEST(HalfModels, OfFp16TrainWithAScaler) {
  for (const int tensor : {1, 2}) {
    run_as_threads(tensor, [&](World world) {
      at::set_num_threads(1);
      auto exact = make_gpt2_of_halves(torch::kHalf), model = make_gpt2_of_halves(torch::kHalf);
      exact->to(torch::kFloat);
      const auto parallel = initialize(model, Config::parse(half_config("", tensor)), in(world));
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      GradScaler scaler(parallel, GradScalerOptions().init_scale(256));
      const auto [tokens, labels] = words(0);
      next_word(exact->forward(tokens), labels).backward();
      scaler.scale(next_word(model->forward(tokens).to(torch::kFloat), labels)).backward();
      scaler.unscale_(optimizer);
      for (const auto& item : model->named_parameters()) {
        EXPECT_EQ(item.value().grad().scalar_type(), torch::kFloat) << item.key();
        const torch::Tensor one = exact->named_parameters()[item.key()].grad();
        const torch::Tensor far = full_tensor(item.value().grad()) - one;
        EXPECT_LE(far.norm().item<float>(), 0.02 * one.norm().item<float>() + 1e-4) << item.key();
      }
      EXPECT_TRUE(scaler.step(optimizer));
      scaler.update();
    });
  }
}

/// Hooks of a parameter, gradients by `autograd::grad` and a gradient of gradients.
TEST(HalfModels, HooksAndGradientsOfGradients) {
  for (const int tensor : {1, 2}) {
    run_as_threads(tensor, [&](World world) {
      at::set_num_threads(1);
      const auto make = [] {
        torch::nn::Sequential made(torch::nn::Linear(5, 7), torch::nn::Tanh(),
                                   torch::nn::Linear(7, 3));
        made->to(torch::kBFloat16);
        return made;
      };
      torch::nn::Sequential exact = make_seeded(3, make), plain = make_seeded(3, make),
                            model = make_seeded(3, make);
      exact->to(torch::kFloat);
      initialize(model, Config::parse(half_config("", tensor)), in(world));
      const torch::Tensor x = make_seeded(4, [] { return torch::randn({4, 5}); });
      const auto run = [&](torch::nn::Sequential& of) {
        const auto weights = of->parameters();
        weights[0].register_hook([](const torch::Tensor& gradient) { return gradient * 2; });
        const torch::Tensor y = of->forward(x.to(weights[0].scalar_type()));
        const torch::Tensor loss = y.to(torch::kFloat).square().sum();
        const auto gradients = torch::autograd::grad({loss}, {weights[2]}, {}, true, true);
        (loss + gradients[0].to(torch::kFloat).square().sum() * 0.1).backward();
      };
      run(exact);
      run(plain);
      run(model);
      for (const size_t i : {0, 1, 2, 3}) {
        const torch::Tensor own = model->parameters()[i].grad(),
                            one = plain->parameters()[i].grad();
        EXPECT_EQ(own.scalar_type(), torch::kFloat);
        expect_rounded_alike(own, one.to(torch::kFloat), exact->parameters()[i].grad(), tensor,
                             c10::str("gradient ", i), 0.02);
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test
