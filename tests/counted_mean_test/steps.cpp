// Counted means in the steps of a PipelineSchedule.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/counted_mean_test/net.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::Grid;
using pipeline_parity::Tensors;
using ::testing::HasSubstr;
using torch::Tensor;

/// Rows, their targets, and which of them count. Some micro-batches, and replicas, have none.
Tensors masked_batch(int step) {
  const Rows rows = rows_of(22, 0.4 + step);
  Tensor mask =
      (torch::sin(torch::arange(22, torch::kDouble) * 2.9 + step) > 0.1).to(torch::kDouble);
  if (step % 3 == 1) mask.slice(0, 0, 11).zero_();
  if (step % 3 == 2) mask.slice(0, 4, 9).zero_();
  return {rows.x, rows.y, mask};
}

torch::nn::Sequential deep_net() {
  return make_seeded(6, [] {
    torch::nn::Sequential net(torch::nn::Linear(3, 7), torch::nn::Tanh(), torch::nn::Linear(7, 6),
                              torch::nn::Tanh(), torch::nn::Linear(6, 7), torch::nn::Tanh(),
                              torch::nn::Linear(7, 2));
    net->to(torch::kDouble);
    return net;
  });
}

/// Its first weight is used again on the last stage.
struct TiedNetImpl : torch::nn::Module {
  TiedNetImpl()
      : in(register_module("in", torch::nn::Linear(3, 7))),
        one(register_module("one", torch::nn::Linear(7, 6))),
        two(register_module("two", torch::nn::Linear(6, 7))) {}
  Tensor forward(const Tensor& x) {
    const Tensor hidden = two(torch::tanh(one(torch::tanh(in(x)))));
    return hidden.matmul(in->weight).narrow(1, 0, 2);
  }
  torch::nn::Linear in, one, two;
};
TORCH_MODULE(TiedNet);

TiedNet tied_net() {
  return make_seeded(6, [] {
    TiedNet net;
    net->to(torch::kDouble);
    return net;
  });
}

/// Squares have other weights than ones: a head counts its own.
template <typename Model>
Tensor masked_sum(Model& model, const Tensors& batch) {
  return ((model->forward(batch[0]) - batch[1]).pow(2).sum(1) * batch[2]).sum();
}

double count_of(const Tensors& batch) {
  return batch[2].sum().item<double>();
}

Tensors part_of(const Tensors& batch, const MPU& mpu) {
  Tensors part;
  for (const Tensor& each : batch) {
    part.push_back(each.tensor_split(mpu.size("data"))[mpu.rank("data")]);
  }
  return part;
}

struct Way {
  bool accumulates = false;  ///< two steps of the schedule for one of the optimizer
  bool scales = false;
  bool whole = false;  ///< by the count of the step, with another term beside it
};

template <typename Make>
void expect_mean(const Grid& grid, const char* kind, const Way& way, const Make& make) {
  SCOPED_TRACE(c10::str(grid.name(), ", ", kind, way.accumulates ? ", accumulates" : "",
                        way.scales ? ", scales" : "", way.whole ? ", whole" : ""));
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    auto net = make(), plain = make();
    const Config config = Config::parse(pipeline_parity::config_of(grid, kind));
    const ParallelModel parallel = initialize(net, config, in(world));
    const MPU& mpu = parallel.mpu();
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4).kind(kind));
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    torch::optim::AdamW by_hand(plain->parameters(), torch::optim::AdamWOptions(1e-2));
    GradScaler scaler(parallel, GradScalerOptions().init_scale(256).enabled(way.scales));
    const auto term = [](auto& of) { return of->parameters().back().pow(2).sum() * 0.1; };
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad(step % 2 == 0);
      std::vector<Tensors> batches{masked_batch(step)};
      if (way.accumulates) batches.push_back(masked_batch(step + 1));
      double shown = 0;
      for (const Tensors& batch : batches) {
        const Tensors own = part_of(batch, mpu);
        const StepResult result = schedule.forward_backward_step(own, [&](const Tensors& micro) {
          const Tensor sum = masked_sum(net, micro);
          const double count = count_of(micro);
          if (!way.whole) return scaler.scale(counted_mean(sum, count, schedule));
          return scaler.scale(counted_mean(sum, count, schedule, count_of(own)) + term(net));
        });
        shown = result.loss.item<double>() / scaler.get_scale();
      }
      plain->zero_grad();
      Tensor sum = torch::zeros({}, torch::kDouble);
      double count = 0, last = 0;
      for (const Tensors& batch : batches) {
        const Tensor of_batch = masked_sum(plain, batch);
        sum = sum + of_batch;
        count += count_of(batch);
        last = of_batch.item<double>() / count_of(batch);
      }
      (sum / count + (way.whole ? term(plain) : torch::zeros({}))).backward();
      EXPECT_TRUE(way.whole || std::abs(shown - last) < 1e-9) << shown;
      scaler.unscale_(optimizer);
      pipeline_parity::expect_gradients(*net, *plain);
      scaler.step(optimizer);
      scaler.update();
      by_hand.step();
    }
    parity::expect_weights(*net, *plain);
    const Tensors own = part_of(masked_batch(7), mpu);
    const StepResult evaluated = schedule.forward_backward_step(
        own,
        [&](const Tensors& micro) {
          return counted_mean(masked_sum(net, micro), count_of(micro), schedule);
        },
        StepOptions().forward_only(true));
    const double expected = masked_sum(plain, masked_batch(7)).template item<double>();
    EXPECT_NEAR(evaluated.loss.item<double>(), expected / count_of(masked_batch(7)), 1e-8);
  });
}

void expect_mean(const Grid& grid, const char* kind, const Way& way) {
  expect_mean(grid, kind, way, deep_net);
}

TEST(CountedSteps, AreTheMeanOverAllMicroBatchesAndReplicas) {
  expect_mean({1, 1, 1}, "1f1b", {});
  expect_mean({2, 1, 1}, "1f1b", {.accumulates = true});
  expect_mean({2, 2, 1}, "1f1b", {.scales = true});
  expect_mean({1, 1, 2}, "1f1b", {.accumulates = true, .scales = true});
  expect_mean({2, 1, 2}, "1f1b", {.accumulates = true});
  expect_mean({2, 1, 2}, "interleaved", {});
  expect_mean({1, 1, 2}, "zero_bubble", {.accumulates = true});
  expect_mean({3, 1, 1}, "gpipe", {.whole = true});
  expect_mean({2, 1, 2}, "interleaved", {.scales = true, .whole = true});
  expect_mean({2, 1, 2}, "1f1b", {.accumulates = true}, tied_net);
  expect_mean({1, 3, 2}, "gpipe", {.accumulates = true, .scales = true}, tied_net);
}

TEST(CountedSteps, NothingCountedLearnsNothing) {
  run_as_threads(2, [](World world) {
    torch::nn::Sequential net = deep_net();
    const ParallelModel parallel = initialize(net, Config::parse("{}"), in(world));
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    Tensors batch = part_of(masked_batch(0), parallel.mpu());
    batch[2].zero_();
    const StepResult result = schedule.forward_backward_step(batch, [&](const Tensors& micro) {
      return counted_mean(masked_sum(net, micro), count_of(micro), schedule);
    });
    EXPECT_TRUE(std::isnan(result.loss.item<double>()));
    for (const Tensor& parameter : net->parameters()) {
      EXPECT_TRUE(torch::equal(parameter.grad(), torch::zeros_like(parameter)));
    }
  });
}

TEST(CountedSteps, RefuseWhatIsNoMean) {
  run_as_threads(2, [](World world) {
    torch::nn::Sequential net = deep_net();
    const ParallelModel parallel = initialize(net, Config::parse("{}"), in(world));
    const Tensors batch = masked_batch(0);
    EXPECT_THAT(error_of([&] {
                  PipelineSchedule schedule(parallel);
                  counted_mean(torch::ones({}), 1, schedule);
                }),
                HasSubstr("in the loss function"));
    const auto error =
        [&](const std::function<Tensor(const PipelineSchedule&, const Tensors&)>& loss) {
          net->zero_grad();
          PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
          return error_of([&] {
            schedule.forward_backward_step(
                batch, [&](const Tensors& micro) { return loss(schedule, micro); });
          });
        };
    int calls = 0;
    EXPECT_THAT(error([&](const PipelineSchedule& schedule, const Tensors& micro) {
                  const Tensor sum = masked_sum(net, micro);
                  return ++calls % 2 == 0 ? counted_mean(sum, 3, schedule) : sum;
                }),
                HasSubstr("count all of them"));
    EXPECT_THAT(error([&](const PipelineSchedule& schedule, const Tensors& micro) {
                  const Tensor sum = masked_sum(net, micro);
                  return counted_mean(sum, 3, schedule) + counted_mean(sum, 4, schedule);
                }),
                HasSubstr("a second one in the loss of a micro-batch"));
    EXPECT_THAT(error([&](const PipelineSchedule& schedule, const Tensors& micro) {
                  return counted_mean(masked_sum(net, micro), -1, schedule);
                }),
                HasSubstr("the count is -1"));
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    net->zero_grad();
    const auto counted = [&](const Tensors& micro) {
      return counted_mean(masked_sum(net, micro), count_of(micro), schedule);
    };
    const auto mean = [&](const Tensors& micro) { return masked_sum(net, micro) * 0.1; };
    schedule.forward_backward_step(batch, mean);
    EXPECT_THAT(error_of([&] { schedule.forward_backward_step(batch, counted); }),
                HasSubstr("gradients of other losses"));
    net->zero_grad();
    schedule.forward_backward_step(batch, counted);
    EXPECT_THAT(error_of([&] { schedule.forward_backward_step(batch, mean); }),
                HasSubstr("a step without counted_mean adds gradients"));
  });
}

}  // namespace
}  // namespace oslo::test
