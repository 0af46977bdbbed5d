// "amp" over ranks, beside plain LibTorch on one device under a guard. Where no layer is cut the
// bits are the same; where one is, partial products are rounded one by one.
#include "tests/mixed_precision_test/cases.h"
#include "tests/support/bf16.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::Grid;

constexpr int kSteps = 5, kMicroBatches = 3;

models::GPT2 make_gpt2() {
  models::GPT2Options options;
  options.layers = 4;
  options.hidden = 36;
  options.heads = 3;
  options.vocabulary = 61;
  return models::GPT2(options);
}

/// Six texts.
std::vector<torch::Tensor> texts(int step) {
  return make_seeded(100 + step, [] {
    const torch::Tensor text = torch::randint(61, {6, 8});
    return std::vector{text.slice(1, 0, 7).contiguous(), text.slice(1, 1, 8).contiguous()};
  });
}

torch::optim::SGD make_sgd(const models::GPT2& model) {
  return torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

/// The parts one after the other on one device, each with its share of the mean.
torch::Tensor in_parts(models::GPT2& model, const std::vector<torch::Tensor>& batch, int parts,
                       std::optional<torch::Dtype> type) {
  torch::Tensor loss;
  for (const auto& part : pipeline_parity::divided(batch, parts)) {
    torch::Tensor own;
    {
      std::optional<UnderAutocast> guard;
      if (type) guard.emplace(*type);
      own = next_word(model->forward(part[0]), part[1]);
    }
    own = own * (1.0 / parts);
    own.backward();
    loss = loss.defined() ? loss + own.detach() : own.detach();
  }
  return loss;
}

struct Case {
  Grid grid;
  const char* kind;
  torch::Dtype type;
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.grid.name() + "_" + info.param.kind +
         (info.param.type == torch::kHalf ? "_float16" : "_bfloat16");
}

class MixedPrecisionGrids : public testing::TestWithParam<Case> {};

TEST_P(MixedPrecisionGrids, TrainsAsOneDeviceUnderAGuard) {
  const auto [grid, kind, type] = GetParam();
  run_as_threads(grid.size(), [&, grid = grid, kind = kind, type = type](World world) {
    at::set_num_threads(1);
    auto exact = make_seeded(7, make_gpt2), plain = make_seeded(7, make_gpt2),
         model = make_seeded(7, make_gpt2);
    const auto before = make_seeded(7, make_gpt2);
    auto exact_optimizer = make_sgd(exact), plain_optimizer = make_sgd(plain),
         optimizer = make_sgd(model);
    InitializeOptions how = in(world);
    how.example_inputs = [&] { model->forward(texts(0)[0]); };
    Config config = Config::parse(amp_config(type, grid.tensor, grid.pipeline));
    config.set(c10::str("model_parallelism.pipeline_schedule=", kind));
    const auto parallel = initialize(model, config, how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicroBatches));
    // The tied table has a copy on two stages, whose gradients are added up in another order than
    // one device's: from its first step on roundings differ.
    const auto same_bits = [&, grid = grid](int step, const std::string& name) {
      const bool uncut = grid.tensor == 1 && grid.data == 1;
      return uncut && (grid.pipeline == 1 || (step == 0 && name != "wte.weight"));
    };
    const int parts = kMicroBatches * grid.data;
    for (int step = 0; step < kSteps; ++step) {
      for (torch::optim::Optimizer* each : std::initializer_list<torch::optim::Optimizer*>{
               &exact_optimizer, &plain_optimizer, &optimizer}) {
        each->zero_grad();
      }
      const auto batch = texts(step);
      in_parts(exact, batch, parts, std::nullopt);
      const torch::Tensor loss = in_parts(plain, batch, parts, type);
      const auto own =
          pipeline_parity::divided(batch, grid.data)[parallel.mpu().get_data_parallel_rank()];
      const StepResult result = schedule.forward_backward_step(
          own, [&](const auto& micro) { return next_word(model->forward(micro[0]), micro[1]); });
      if (same_bits(step, "loss")) expect_same(result.loss, loss, "loss");
      const auto of_exact = exact->named_parameters(), of_plain = plain->named_parameters();
      for (const auto& item : model->named_parameters()) {
        if (!is_here(item.value())) continue;
        const torch::Tensor& gradient = item.value().grad();
        ASSERT_TRUE(gradient.defined()) << item.key();
        EXPECT_EQ(gradient.scalar_type(), torch::kFloat) << item.key();
        const torch::Tensor whole = pipeline_parity::whole_here(gradient);
        if (same_bits(step, item.key())) {
          expect_same(whole, of_plain[item.key()].grad(), "gradient of " + item.key());
        } else {
          expect_rounded_alike(whole, of_plain[item.key()].grad(), of_exact[item.key()].grad(),
                               grid.size(), "gradient of " + item.key());
        }
      }
      exact_optimizer.step();
      plain_optimizer.step();
      optimizer.step();
    }
    const auto of_exact = exact->named_parameters(), of_plain = plain->named_parameters(),
               at_first = before->named_parameters();
    for (const auto& item : model->named_parameters()) {
      if (!is_here(item.value())) continue;
      const torch::Tensor whole = pipeline_parity::whole_here(item.value()),
                          &first = at_first[item.key()].detach();
      if (same_bits(kSteps, item.key())) {
        expect_same(whole, of_plain[item.key()], "weight " + item.key());
      } else {
        expect_rounded_alike(whole - first, of_plain[item.key()].detach() - first,
                             of_exact[item.key()].detach() - first, grid.size(),
                             "what was learned of " + item.key());
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, MixedPrecisionGrids,
    testing::Values(
        Case{{1, 1, 1}, "1f1b", torch::kHalf}, Case{{1, 2, 1}, "1f1b", torch::kBFloat16},
        Case{{1, 3, 1}, "1f1b", torch::kHalf}, Case{{2, 1, 1}, "1f1b", torch::kBFloat16},
        Case{{1, 1, 2}, "naive", torch::kHalf}, Case{{1, 1, 2}, "gpipe", torch::kBFloat16},
        Case{{1, 1, 2}, "1f1b", torch::kBFloat16}, Case{{1, 1, 2}, "interleaved", torch::kHalf},
        Case{{1, 1, 2}, "zero_bubble", torch::kBFloat16}, Case{{1, 1, 2}, "zbv", torch::kHalf},
        Case{{1, 2, 2}, "zero_bubble", torch::kHalf}, Case{{2, 2, 1}, "1f1b", torch::kBFloat16}),
    case_name);

}  // namespace
}  // namespace oslo::test
