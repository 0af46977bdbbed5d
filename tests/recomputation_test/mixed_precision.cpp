// Recomputation beside "amp" and "master_weights".
#include "parallelizers/memory/recompute/layer_segments.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/layout/context.h"
#include "tests/recomputation_test/gpt2.h"
#include "tests/recomputation_test/kept_sizes.h"
#include "tests/support/bf16.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"
#include "tests/support/under_autocast.h"

namespace oslo::test {
namespace {

using torch::Tensor;

std::string config_of(torch::Dtype type, const std::string& more, const std::string& form,
                      int tensor = 1) {
  return c10::str(R"({"amp": {"enabled": true, "dtype": ")",
                  type == torch::kHalf ? "float16" : "bfloat16", R"("}, )", more,
                  R"("model_parallelism": {"tensor_parallel_size": )", tensor,
                  R"(}, "activation_checkpoint": {"enabled": true)", form, "}}");
}

const Tensor& tokens() {
  static const Tensor all = torch::arange(14).view({2, 7});
  return all;
}

void expect_all_cut(const ParallelModel& parallel) {
  const auto context = context_of(parallel.mpu().tensor_mesh());
  for (const SegmentReport& each :
       dynamic_cast<const LayerSegments&>(*context->observer).report()) {
    EXPECT_TRUE(each.used) << each.name;
    EXPECT_EQ(each.not_cut, "") << each.name;
  }
}

TEST(RecomputedInMixedPrecision, TrainsAsUnderAGuardBitForBit) {
  at::set_num_threads(1);
  const auto make = [] { return make_seeded(3, [] { return models::GPT2(small_gpt2(4, 0.2)); }); };
  const auto train = [&](models::GPT2& model, std::optional<torch::Dtype> guarded) {
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    std::vector<Tensor> seen;
    const std::lock_guard<std::mutex> draws(random_mutex());
    at::manual_seed(5);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      Tensor loss;
      {
        std::optional<UnderAutocast> guard;
        if (guarded) guard.emplace(*guarded);
        loss = loss_of_tokens(model->forward(tokens()), tokens());
      }
      seen.push_back(full_tensor(loss).detach());
      loss.backward();
      for (const Tensor& parameter : model->parameters()) {
        seen.push_back(local_tensor(parameter.grad()).clone());
      }
      optimizer.step();
    }
    return seen;
  };
  for (const torch::Dtype type : {torch::kBFloat16, torch::kHalf}) {
    models::GPT2 plain = make();
    const auto expected = train(plain, type);
    for (const char* more : {"", R"("master_weights": true, )"}) {
      for (const char* form :
           {"", R"(, "every": 3)", R"(, "modules": ["h.*.attn"])", R"(, "keep": ["matmul"])"}) {
        SCOPED_TRACE(c10::str(type, " ", more, form));
        run_as_threads(1, [&](World world) {
          at::set_num_threads(1);
          models::GPT2 model = make();
          const auto parallel =
              initialize(model, Config::parse(config_of(type, more, form)), in(world));
          const auto seen = train(model, std::nullopt);
          ASSERT_EQ(seen.size(), expected.size());
          for (size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(seen[i].equal(expected[i])) << i;
          expect_all_cut(parallel);
          for (const auto& item : plain->named_parameters()) {
            const Tensor ours = local_tensor(model->named_parameters()[item.key()]);
            EXPECT_TRUE(ours.equal(item.value())) << item.key();
          }
        });
      }
    }
  }
}

/// A half model, whose operators read copies of parameters that are kept in fp32.
TEST(RecomputedInMixedPrecision, AHalfModelWithMasterWeights) {
  for (const torch::Dtype type : {torch::kBFloat16, torch::kHalf}) {
    for (const std::string form : {"", R"(, "keep": ["matmul"])"}) {
      run_as_threads(1, [&](World world) {
        at::set_num_threads(1);
        auto plain = make_seeded(3, [] { return models::GPT2(small_gpt2(3)); }),
             model = make_seeded(3, [] { return models::GPT2(small_gpt2(3)); });
        plain->to(type);
        model->to(type);
        const auto parallel =
            initialize(model,
                       Config::parse(R"({"master_weights": true, "model_parallelism":
                         {"tensor_parallel_size": 1}, "activation_checkpoint": {"enabled": true)" +
                                     form + "}}"),
                       in(world));
        for (int step = 0; step < 2; ++step) {
          for (auto* each : {&plain, &model}) {
            (*each)->zero_grad();
            loss_of_tokens((*each)->forward(tokens()), tokens()).backward();
          }
          // Gradients of the table's two uses meet in fp32 in place of half.
          for (const auto& item : plain->named_parameters()) {
            if (item.key() == "wte.weight") continue;
            const Tensor ours = local_tensor(model->named_parameters()[item.key()].grad());
            EXPECT_EQ(ours.scalar_type(), torch::kFloat);
            EXPECT_TRUE(ours.equal(item.value().grad().to(torch::kFloat))) << item.key();
          }
        }
        expect_all_cut(parallel);
      });
    }
  }
}

/// Bytes between forward and backward, of four layers: a layer's input is 512 x 48 numbers, the
/// weights of its products are 12 x 48 x 48.
TEST(RecomputedInMixedPrecision, KeepsNeitherCastsNorWhatProductsSaved) {
  run_as_threads(1, [](World world) {
    at::set_num_threads(1);
    const auto kept = [&](const std::string& config) { return kept_sizes(config, world); };
    const auto amp = [](const std::string& more) {
      return R"({"amp": {"enabled": true}, "model_parallelism": {"tensor_parallel_size": 1})" +
             more + "}";
    };
    const std::string recomputed = R"(, "activation_checkpoint": {"enabled": true)";
    const double plain = kept(amp("")), all = kept(amp(recomputed + "}")),
                 products = kept(amp(recomputed + R"(, "keep": ["matmul"]})"));
    const double weights = 12.0 * 48 * 48 / (512 * 48);
    EXPECT_GT(plain, 4 * (7 + weights / 2));
    EXPECT_LT(all, plain - 4 * (6.5 + weights / 2));
    // Four products a layer, 9 times its input in bf16 (3 + 1 + 4 + 1).
    EXPECT_LT(products, all + 4 * 9.1 / 2);
  });
}

TEST(RecomputedInMixedPrecision, OverTensorRanksComputesWhatItDoesWithout) {
  for (const int size : {2, 3}) {
    for (const char* more : {"", R"("master_weights": true, )"}) {
      run_as_threads(size, [&](World world) {
        at::set_num_threads(1);
        const auto train = [&](const std::string& config) {
          auto model = make_seeded(3, [] { return models::GPT2(small_gpt2(3)); });
          initialize(model, Config::parse(config), in(world));
          torch::optim::SGD optimizer(model->parameters(), 0.1);
          for (int step = 0; step < 3; ++step) {
            optimizer.zero_grad();
            loss_of_tokens(model->forward(tokens()), tokens()).backward();
            optimizer.step();
          }
          std::vector<Tensor> parts;
          for (const Tensor& parameter : model->parameters()) {
            parts.push_back(local_tensor(parameter).detach());
          }
          return parts;
        };
        const std::string config = config_of(torch::kBFloat16, more, "", size);
        std::string without = config;
        without.replace(without.rfind("true"), 4, "false");
        const auto ours = train(config), expected = train(without);
        for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(expected[i])) << i;
      });
    }
  }
}

}  // namespace
}  // namespace oslo::test
