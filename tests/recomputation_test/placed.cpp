// oslo::checkpoint in models that are cut over ranks: one device that never saw it is the
// reference.
#include "tests/recomputation_test/gpt2.h"
#include "tests/support/initialized.h"
#include "tests/support/own_draws.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using torch::Tensor;

/// GPT-2, whose author wraps each block.
struct WrappedGPT2Impl : models::GPT2Impl {
  explicit WrappedGPT2Impl(const models::GPT2Options& options, CheckpointOptions kept = {})
      : models::GPT2Impl(options), options(std::move(kept)) {}

  Tensor forward(const Tensor& tokens) {
    if (plain_unless_placed && !is_placed(wte->weight)) return models::GPT2Impl::forward(tokens);
    auto x = wte->forward(tokens) + wpe->forward(torch::arange(tokens.size(1)));
    for (const auto& block : *h) {
      x = checkpoint(
          options,
          [block, this](const Tensor& in) {
            ++calls;
            return block->as<models::GPT2Block>()->forward(in);
          },
          x);
    }
    return torch::matmul(ln_f->forward(x), wte->weight.t());
  }
  CheckpointOptions options;
  int calls = 0;
  bool plain_unless_placed = false;
};
TORCH_MODULE(WrappedGPT2);

std::string tensor_size(int size) {
  return R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )" +
         std::to_string(size) + "}}";
}

const std::vector<std::pair<const char*, CheckpointOptions>>& ways() {
  static const std::vector<std::pair<const char*, CheckpointOptions>> all = {
      {"all", {}},
      {"whole", CheckpointOptions().whole()},
      {"keep", CheckpointOptions().keep({"matmul", "attention"})}};
  return all;
}

TEST(CheckpointOnRanks, GPT2WithDropoutEqualsOneDevice) {
  const Tensor tokens = torch::arange(14).view({2, 7});
  for (const int size : {1, 2, 3}) {
    run_as_threads(size, [&](World world) {
      at::set_num_threads(1);
      auto plain = make_seeded(3, [&] { return models::GPT2(small_gpt2(2, 0.2)); });
      plain->to(torch::kDouble);
      torch::optim::AdamW reference(plain->parameters(), torch::optim::AdamWOptions(1e-3));
      std::vector<Tensor> losses;
      {
        const OwnDraws draws(17);
        for (int step = 0; step < 3; ++step) {
          reference.zero_grad();
          losses.push_back(loss_of_tokens(plain->forward(tokens), tokens));
          losses.back().backward();
          reference.step();
        }
      }
      auto all = ways();
      all.emplace_back("half", CheckpointOptions().keep({"matmul"}).keep_at_most(0.5));
      for (const auto& [name, options] : all) {
        auto model =
            make_seeded(3, [&, &o = options] { return WrappedGPT2(small_gpt2(2, 0.2), o); });
        model->to(torch::kDouble);
        torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
        const auto parallel = initialize(model, Config::parse(tensor_size(size)), in(world));
        const OwnDraws draws(17);
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          const Tensor loss = loss_of_tokens(model->forward(tokens), tokens);
          EXPECT_TRUE(size == 1 ? loss.equal(losses[step])
                                : loss.allclose(losses[step], 1e-10, 1e-12))
              << name << " on " << size;
          loss.backward();
          optimizer.step();
        }
        EXPECT_EQ(model->calls, 2 * 2 * 3) << name;
        parity::expect_gradients(*model, *plain);
        parity::expect_weights(*model, *plain);
      }
    });
  }
}

TEST(CheckpointOnRanks, CollectivesAreMadeAgainButThoseOfWhatIsKept) {
  const Tensor tokens = torch::arange(14).view({2, 7});
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    const auto calls_of = [&](auto model) {
      InitializeOptions how = in(world);
      how.example_inputs = [&] { model->forward(tokens); };
      auto parallel = initialize(model, Config::parse(tensor_size(2)), how);
      parallel.count([&] { loss_of_tokens(model->forward(tokens), tokens).backward(); });
      int64_t calls = 0;
      for (const PlanTraffic& line : parallel.plan().traffic) calls += line.entry.traffic.calls;
      return calls;
    };
    const int64_t plain = calls_of(make_seeded(3, [] { return models::GPT2(small_gpt2(2, 0)); }));
    for (const auto& [name, options] : ways()) {
      const int64_t calls =
          calls_of(make_seeded(3, [&, &o = options] { return WrappedGPT2(small_gpt2(2, 0), o); }));
      const int again = name == std::string("keep") ? 0 : 2 * 2;  // all-reduces of two forwards
      EXPECT_EQ(calls, plain + again) << name;
    }
  });
}

TEST(CheckpointOnRanks, PipelineStagesReceiveNothingTwice) {
  for (const std::string kind : {"1f1b", "zero_bubble", "gpipe"}) {
    for (const pipeline_parity::Grid grid :
         {pipeline_parity::Grid{1, 1, 2}, pipeline_parity::Grid{1, 2, 2}}) {
      SCOPED_TRACE(kind + " " + grid.name());
      pipeline_parity::Trial trial;
      trial.grid = grid;
      trial.kind = kind;
      pipeline_parity::expect_parity(
          trial,
          [] {
            WrappedGPT2 model(small_gpt2(2, 0));
            model->plain_unless_placed = true;  // the reference
            return model;
          },
          [](int) {
            return std::vector<Tensor>{torch::randint(19, {8, 7})};
          },
          [](WrappedGPT2& model, const std::vector<Tensor>& micro) {
            return loss_of_tokens(model->forward(micro[0]), micro[0]);
          });
    }
  }
}

}  // namespace
}  // namespace oslo::test
