// What happens to gradients in fp32 of half parameters on their way: DistributedDataParallel's
// options, parameters of several types, micro-batches, clipping.
#include <memory>

#include "tests/mixed_precision_test/cases.h"
#include "tests/support/bf16.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

/// Half but for its norm.
struct MixedImpl : torch::nn::Module {
  MixedImpl()
      : up(register_module("up", torch::nn::Linear(5, 7))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})))),
        down(register_module("down", torch::nn::Linear(7, 3))),
        spare(register_module("spare", torch::nn::Linear(7, 3))) {
    to(torch::kBFloat16);
    norm->to(torch::kFloat);
  }
  torch::Tensor forward(const torch::Tensor& x, bool other) {
    const torch::Tensor h = norm(up(x).tanh().to(torch::kFloat)).to(torch::kBFloat16);
    return other ? spare(h) : down(h);
  }
  torch::nn::Linear up;
  torch::nn::LayerNorm norm;
  torch::nn::Linear down, spare;
};
TORCH_MODULE(Mixed);

Mixed make_mixed() {
  return make_seeded(5, [] { return Mixed(); });
}

torch::Tensor input(int number) {
  return make_seeded(100 + number, [] { return torch::randn({4, 5}).to(torch::kBFloat16); });
}

torch::Tensor loss_of(const torch::Tensor& y) {
  return y.to(torch::kFloat).square().mean();
}

/// The gradients of passes of the plain model, each in its own type, added up in fp32.
class Sums {
 public:
  void add(Mixed& plain, double factor) {
    for (const auto& item : plain->named_parameters()) {
      if (!item.value().grad().defined()) continue;
      torch::Tensor& sum = sums_[item.key()];
      const torch::Tensor wide = item.value().grad().to(torch::kFloat) * factor;
      sum = sum.defined() ? sum + wide : wide;
    }
    plain->zero_grad();
  }
  void expect(const Mixed& model, const std::string& when) const {
    for (const auto& item : model->named_parameters()) {
      const auto found = sums_.find(item.key());
      const torch::Tensor& gradient = item.value().grad();
      ASSERT_EQ(gradient.defined(), found != sums_.end()) << item.key() << " " << when;
      if (!gradient.defined()) continue;
      EXPECT_EQ(gradient.scalar_type(), torch::kFloat) << item.key() << " " << when;
      EXPECT_TRUE(torch::allclose(full_tensor(gradient), found->second, 1e-5, 1e-7))
          << item.key() << " " << when << "\n"
          << gradient << found->second;
    }
  }
  void clear() { sums_.clear(); }

 private:
  std::map<std::string, torch::Tensor> sums_;
};

struct Exchange {
  const char* name;
  bool view, unused, fixed;
};

class HalfExchange : public testing::TestWithParam<Exchange> {};

TEST_P(HalfExchange, GivesTheSumsOfOneDevice) {
  const Exchange& how = GetParam();
  for (const bool narrow : {false, true}) {
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      Mixed model = make_mixed(), plain = make_mixed();
      const auto parallel = initialize(model, Config::parse("{}"), in(world));
      DDPOptions options;
      options.gradient_as_bucket_view(how.view)
          .find_unused_parameters(how.unused)
          .static_graph(how.fixed);
      // Of several buckets.
      if (narrow) options.bucket_cap_mb(1e-4);
      DistributedDataParallel<Mixed> ddp(model, parallel.mpu().get_data_parallel_group(), options);
      Sums sums;
      const int rank = world.rank();
      const auto run = [&](int number, bool other, bool exchanged) {
        const auto forward = [&] {
          if (exchanged) return ddp.forward(input(2 * number + rank), other);
          const auto guard = ddp.no_sync();
          return ddp.forward(input(2 * number + rank), other);
        };
        torch::Tensor own = loss_of(forward());
        if (!how.unused) own = own + loss_of(model->forward(input(50), !other)) * 0;
        own.backward();
        for (int each = 0; each < 2; ++each) {
          torch::Tensor same = loss_of(plain->forward(input(2 * number + each), other));
          if (!how.unused) same = same + loss_of(plain->forward(input(50), !other)) * 0;
          same.backward();
          sums.add(plain, 0.5);
        }
      };
      // In a static graph the first backward exchanges.
      run(0, false, how.fixed);
      if (!how.fixed) run(1, false, true);
      sums.expect(model, "first");
      model->zero_grad();
      sums.clear();
      run(2, false, false);
      run(3, how.unused, true);
      sums.expect(model, "accumulated");
      run(4, false, true);
      model->zero_grad(/*set_to_none=*/false);
      for (const torch::Tensor& parameter : model->parameters()) {
        if (parameter.grad().defined()) {
          EXPECT_EQ(parameter.grad().abs().sum().item<float>(), 0);
        }
      }
      // One that the program assigns is of the parameter's type.
      model->zero_grad();
      sums.clear();
      model->up->weight.mutable_grad() = torch::ones_like(plain->up->weight);
      plain->up->weight.mutable_grad() = torch::ones_like(plain->up->weight);
      sums.add(plain, 1);
      run(5, false, true);
      sums.expect(model, "assigned");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Options, HalfExchange,
                         testing::Values(Exchange{"plain", false, false, false},
                                         Exchange{"views", true, false, false},
                                         Exchange{"unused", false, true, false},
                                         Exchange{"unused_views", true, true, false},
                                         Exchange{"fixed", false, false, true},
                                         Exchange{"fixed_views", true, false, true}),
                         [](const auto& info) { return std::string(info.param.name); });

/// 'reduce_dtype' of a model in fp32: gradients travel in bf16, at half of the bytes.
TEST(ReduceDtype, GradientsInFp32TravelInIt) {
  for (const bool step : {false, true}) {
    int64_t bytes[2] = {};
    for (const bool narrow : {false, true}) {
      run_as_threads(2, [&](World world) {
        at::set_num_threads(1);
        Mixed model = make_mixed(), plain = make_mixed();
        model->to(torch::kFloat), plain->to(torch::kFloat);
        for (Mixed* each : {&model, &plain}) (*each)->spare->weight.set_requires_grad(false);
        for (Mixed* each : {&model, &plain}) (*each)->spare->bias.set_requires_grad(false);
        const auto parallel = initialize(
            model, Config::parse(narrow ? R"({"reduce_dtype": "bfloat16"})" : "{}"), in(world));
        const auto loss = [](Mixed& of, const torch::Tensor& x) {
          return of->down(of->norm(of->up(x).tanh())).square().mean();
        };
        const auto wide = [](int number) { return input(number).to(torch::kFloat); };
        parallel.mpu().data_group()->ledger().clear();
        if (step) {
          PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(1));
          schedule.forward_backward_step({wide(world.rank())},
                                         [&](const auto& micro) { return loss(model, micro[0]); });
        } else {
          struct LossImpl : torch::nn::Module {
            explicit LossImpl(const Mixed& of) : mixed(register_module("mixed", of)) {}
            torch::Tensor forward(const torch::Tensor& x) {
              return mixed->down(mixed->norm(mixed->up(x).tanh())).square().mean();
            }
            Mixed mixed;
          };
          DistributedDataParallel<LossImpl> ddp(std::make_shared<LossImpl>(model),
                                                parallel.mpu().get_data_parallel_group());
          parallel.mpu().data_group()->ledger().clear();
          ddp.forward(wide(world.rank())).backward();
        }
        if (world.rank() == 0) {
          for (const auto& entry : parallel.mpu().data_group()->ledger().entries()) {
            if (entry.operation == "all_reduce") bytes[narrow] += entry.traffic.bytes;
          }
        }
        for (const int number : {0, 1}) (loss(plain, wide(number)) / 2).backward();
        for (const auto& item : model->named_parameters()) {
          const torch::Tensor& one = plain->named_parameters()[item.key()].grad();
          ASSERT_EQ(item.value().grad().defined(), one.defined()) << item.key();
          if (!one.defined()) continue;
          EXPECT_EQ(item.value().grad().scalar_type(), torch::kFloat);
          const double far = (item.value().grad() - one).norm().item<double>();
          EXPECT_LE(far, (narrow ? 1.0 / 128 : 1e-5) * one.norm().item<double>()) << item.key();
          if (narrow) {
            EXPECT_GT(far, 0) << item.key();
          }
        }
      });
    }
    EXPECT_GT(bytes[1], 0);
    EXPECT_EQ(bytes[0], 2 * bytes[1]) << step;
  }
}

/// As on one device a model that becomes double gets gradients in double.
TEST(WideGradients, FollowTheModelToDouble) {
  for (const int tensor : {1, 2}) {
    run_as_threads(tensor, [&](World world) {
      at::set_num_threads(1);
      Mixed model = make_mixed();
      initialize(model,
                 Config::parse(
                     c10::str(R"({"model_parallelism": {"tensor_parallel_size": )", tensor, "}}")),
                 in(world));
      EXPECT_EQ(model->up->weight.grad_dtype(), torch::kFloat);
      model->to(torch::kDouble);
      const torch::Tensor h = model->up(input(0).to(torch::kDouble));
      h.square().sum().backward();
      EXPECT_EQ(model->up->weight.grad().scalar_type(), torch::kDouble);
    });
  }
}

using pipeline_parity::Grid;

struct HalfStep {
  Grid grid;
  const char* kind;
};

class HalfSteps : public testing::TestWithParam<HalfStep> {};

/// Micro-batches of a schedule, tied tables on two stages, clipping by the norm of all.
TEST_P(HalfSteps, AddUpInFp32) {
  const auto [grid, kind] = GetParam();
  run_as_threads(grid.size(), [grid = grid, kind = kind](World world) {
    at::set_num_threads(1);
    const auto make = [] {
      models::GPT2Options options;
      options.layers = 4;
      return models::GPT2(options);
    };
    auto exact = make_seeded(7, make), plain = make_seeded(7, make), model = make_seeded(7, make);
    for (auto* each : {&exact, &plain, &model}) (*each)->to(torch::kBFloat16);
    exact->to(torch::kFloat);
    InitializeOptions how = in(world);
    const std::vector<torch::Tensor> batch = make_seeded(3, [] {
      const torch::Tensor text = torch::randint(64, {12, 8});
      return std::vector{text.slice(1, 0, 7).contiguous(), text.slice(1, 1, 8).contiguous()};
    });
    how.example_inputs = [&] { model->forward(batch[0]); };
    Config config =
        Config::parse(c10::str(R"({"model_parallelism": {"tensor_parallel_size": )", grid.tensor,
                               R"(, "pipeline_parallel_size": )", grid.pipeline, "}}"));
    config.set(c10::str("model_parallelism.pipeline_schedule=", kind));
    const auto parallel = initialize(model, config, how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(3));
    const auto loss = [](models::GPT2& of, const std::vector<torch::Tensor>& part) {
      return next_word(of->forward(part[0]).to(torch::kFloat), part[1]);
    };
    std::map<std::string, torch::Tensor> sums;
    const int parts = 3 * grid.data;
    for (const auto& part : pipeline_parity::divided(batch, parts)) {
      (loss(exact, part) * (1.0 / parts)).backward();
      // The program's loss is a mean over data ranks by an average, not by a factor.
      (loss(plain, part) * (1.0 / 3)).backward();
      for (const auto& item : plain->named_parameters()) {
        torch::Tensor& sum = sums[item.key()];
        const torch::Tensor wide = item.value().grad().to(torch::kFloat) / grid.data;
        sum = sum.defined() ? sum + wide : wide;
      }
      plain->zero_grad();
    }
    const auto own =
        pipeline_parity::divided(batch, grid.data)[parallel.mpu().get_data_parallel_rank()];
    schedule.forward_backward_step(own, [&](const auto& micro) { return loss(model, micro); });
    const auto of_exact = exact->named_parameters();
    double squares = 0;
    for (const auto& [name, sum] : sums) squares += sum.square().sum().item<double>();
    for (const auto& item : model->named_parameters()) {
      if (!is_here(item.value())) continue;
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_EQ(item.value().grad().scalar_type(), torch::kFloat) << item.key();
      const torch::Tensor whole = pipeline_parity::whole_here(item.value().grad());
      const torch::Tensor& sum = sums.at(item.key());
      // A tied table's uses are added up in bf16 on one device.
      if (grid.tensor == 1 && item.key() != "wte.weight") {
        EXPECT_TRUE(torch::allclose(whole, sum, 1e-5, 1e-7)) << item.key();
      } else {
        expect_rounded_alike(whole, sum, of_exact[item.key()].grad(), grid.tensor, item.key());
      }
    }
    const double norm = std::sqrt(squares);
    EXPECT_NEAR(parallel.clip_grad_norm_(norm / 2), norm, norm / 100);
    for (const auto& item : model->named_parameters()) {
      if (!is_here(item.value())) continue;
      const torch::Tensor whole = pipeline_parity::whole_here(item.value().grad());
      EXPECT_NEAR(whole.norm().item<double>(), sums.at(item.key()).norm().item<double>() / 2,
                  norm / 100)
          << item.key();
    }
    torch::optim::AdamW optimizer(model->parameters());
    optimizer.step();
    for (const torch::Tensor& parameter : model->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), torch::kBFloat16);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Grids, HalfSteps,
                         testing::Values(HalfStep{{1, 1, 1}, "1f1b"}, HalfStep{{2, 1, 1}, "1f1b"},
                                         HalfStep{{1, 3, 1}, "1f1b"}, HalfStep{{1, 1, 2}, "1f1b"},
                                         HalfStep{{1, 1, 2}, "zero_bubble"},
                                         HalfStep{{1, 1, 2}, "interleaved"},
                                         HalfStep{{2, 1, 2}, "gpipe"}, HalfStep{{1, 2, 2}, "zbv"}));

}  // namespace
}  // namespace oslo::test
