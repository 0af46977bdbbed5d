// Models with "amp", "master_weights" or half parameters change their layout in memory, and become
// ordinary ones.
#include <map>
#include <memory>

#include "tests/mixed_precision_test/cases.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace {

models::GPT2 make_gpt2(torch::Dtype type) {
  auto model = make_seeded(7, [] { return models::GPT2(models::GPT2Options()); });
  model->to(type);
  return model;
}

struct Precise {
  const char* name;
  const char* keys;   ///< of the config
  torch::Dtype type;  ///< that the author had parameters in
  torch::Dtype kept, gradients;
};

std::string config_of(const char* keys, int tensor, int pipeline) {
  return c10::str("{", keys, R"("model_parallelism": {"tensor_parallel_size": )", tensor,
                  R"(, "pipeline_parallel_size": )", pipeline, "}}");
}

using Values = std::map<std::string, torch::Tensor>;

class PreciseResharding : public testing::TestWithParam<Precise> {};

TEST_P(PreciseResharding, KeepsEveryBitOverEveryLayout) {
  const Precise& precise = GetParam();
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    auto model = make_gpt2(precise.type);
    torch::optim::AdamW optimizer(model->parameters());
    const std::vector<torch::Tensor> objects = model->parameters();
    const auto how = [&] {
      InitializeOptions options = in(world);
      options.example_inputs = [&] { model->forward(words(0).first); };
      return options;
    };
    ParallelModel parallel = initialize(model, Config::parse(config_of(precise.keys, 2, 1)), how());
    const auto along = ReshardOptions().optimizer(&optimizer);
    step(parallel, model, optimizer, 0);
    for (const auto& [tensor, pipeline] : {std::pair(1, 2), std::pair(1, 1), std::pair(2, 1)}) {
      Values before;
      for (const auto& item : model->named_parameters()) {
        before[item.key()] = full_tensor(item.value()).detach().clone();
      }
      parallel.reshard(Config::parse(config_of(precise.keys, tensor, pipeline)), how(), along);
      for (const auto& item : model->named_parameters()) {
        EXPECT_EQ(item.value().scalar_type(), precise.kept) << item.key();
        EXPECT_TRUE(torch::equal(full_tensor(item.value()).detach(), before.at(item.key())))
            << item.key();
      }
      step(parallel, model, optimizer, 1);
      for (const torch::Tensor& parameter : model->parameters()) {
        if (!is_here(parameter)) continue;
        EXPECT_EQ(parameter.grad().scalar_type(), precise.gradients);
      }
      const torch::NoGradGuard no_grad;
      EXPECT_NE(full_tensor(model->forward(words(3).first)).scalar_type(), torch::kFloat);
    }
    // On both ranks a whole model.
    Values whole;
    for (const auto& item : model->named_parameters()) {
      whole[item.key()] = full_tensor(item.value()).detach().to(precise.type);
    }
    parallel.deparallelize(along);
    expect_untouched(model);
    auto plain = make_gpt2(precise.type);
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(item.value().is_same(objects[0]) || item.key() != "wte.weight");
      EXPECT_EQ(item.value().scalar_type(), precise.type) << item.key();
      EXPECT_EQ(item.value().grad_dtype(), precise.type) << item.key();
      EXPECT_EQ(item.value().grad().scalar_type(), precise.type) << item.key();
      EXPECT_TRUE(torch::equal(item.value().detach(), whole.at(item.key()))) << item.key();
      const torch::NoGradGuard no_grad;
      plain->named_parameters()[item.key()].copy_(item.value());
    }
    // It is one of plain LibTorch, and the optimizer goes on.
    const auto [tokens, labels] = words(5);
    for (auto* each : {&model, &plain}) {
      (*each)->zero_grad();
      next_word((*each)->forward(tokens).to(torch::kFloat), labels).backward();
    }
    expect_same_gradients(*model, *plain);
    optimizer.step();
    for (const torch::Tensor& parameter : model->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), precise.type);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, PreciseResharding,
    testing::Values(Precise{"amp", R"("amp": {"enabled": true}, )", torch::kFloat, torch::kFloat,
                            torch::kFloat},
                    Precise{"masters", R"("amp": {"enabled": true}, "master_weights": true, )",
                            torch::kFloat, torch::kFloat, torch::kFloat},
                    Precise{"masters_of_halves", R"("master_weights": true, )", torch::kBFloat16,
                            torch::kFloat, torch::kFloat},
                    Precise{"halves", "", torch::kBFloat16, torch::kBFloat16, torch::kFloat},
                    Precise{"narrow_halves", R"("reduce_dtype": "float16", )", torch::kBFloat16,
                            torch::kBFloat16, torch::kBFloat16}),
    [](const auto& info) { return std::string(info.param.name); });

/// With other keys than before.
TEST(PreciseReshardingKeys, MayChange) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    auto model = make_gpt2(torch::kBFloat16);
    ParallelModel parallel =
        initialize(model, Config::parse(config_of(R"("master_weights": true, )", 2, 1)), in(world));
    for (const int number : {0, 1}) {
      const auto [tokens, labels] = words(number);
      next_word(model->forward(tokens).to(torch::kFloat), labels).backward();
    }
    const torch::Tensor weight = model->named_parameters()["h.0.c_fc.weight"];
    const torch::Tensor gradient = full_tensor(weight.grad()).detach().clone();
    EXPECT_FALSE(torch::equal(gradient, gradient.to(torch::kBFloat16).to(torch::kFloat)));
    // Half parameters again, and gradients as precise as they were.
    parallel.reshard(Config::parse(config_of("", 1, 1)), in(world));
    EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
    expect_same(weight.grad(), gradient, "gradient");
    parallel.reshard(Config::parse(config_of(R"("reduce_dtype": "float16", )", 2, 1)), in(world));
    EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
    expect_same(weight.grad(), gradient.to(torch::kBFloat16), "gradient");
    // Masters from here on, in fp32 by what they are.
    parallel.reshard(Config::parse(config_of(R"("master_weights": true, )", 1, 1)), in(world));
    EXPECT_EQ(weight.scalar_type(), torch::kFloat);
    EXPECT_EQ(weight.grad().scalar_type(), torch::kFloat);
    const torch::NoGradGuard no_grad;
    weight.add_(1e-4);  // a master knows it
    const torch::Tensor master = full_tensor(weight).detach().clone();
    EXPECT_FALSE(torch::equal(master, master.to(torch::kBFloat16).to(torch::kFloat)));
    parallel.reshard(Config::parse(config_of(R"("master_weights": true, )", 2, 1)), in(world));
    expect_same(weight, master, "master");
    // What is refused leaves an ordinary model.
    const auto refused = Config::parse(config_of("", 1, 2));
    InitializeOptions bad = in(world);
    bad.memory_limit = 5;
    EXPECT_FALSE(error_of([&] { parallel.reshard(refused, bad); }).empty());
    EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
    expect_untouched(model);
  });
}

}  // namespace
}  // namespace oslo::test
