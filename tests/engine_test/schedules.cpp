// Schedules of an engine: the loop of the document, over pipeline stages and on one.
#include "tests/engine_test/cases.h"

namespace oslo::test::engines {
namespace {

/// This replica's rows.
Tensor part_of(const Tensor& whole, const MPU& mpu) {
  return whole.tensor_split(mpu.size("data"))[mpu.rank("data")];
}

template <typename Criterion>
void expect_schedule(const Grid& grid, int chunks, double clip, const Criterion& criterion,
                     void (PlainLoop::*by_hand)(const Batches&)) {
  constexpr bool kCounts =
      std::is_same_v<std::invoke_result_t<Criterion, Tensor, Tensor>, CountedLoss>;
  SCOPED_TRACE(c10::str(grid.name(), ", chunks ", chunks, ", clipped to ", clip));
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential model = make_net();
    PlainLoop plain(clip);
    torch::optim::SGD optimizer = make_optimizer(model);
    const Batches batches = unequal_batches();
    const Config config =
        Config::parse(engine_config(grid, clip > 0 ? kThreeBatches : kThreeUnclipped, chunks));
    auto [engine, train_loader] =
        oslo::initialize(model, optimizer, criterion, batches, config, in(world));
    oslo::PipelineSchedule schedule = chunks == 1
                                          ? oslo::PipelineSchedule(engine, 2)
                                          : oslo::InterleavedPipelineSchedule(engine, 2, chunks);
    const MPU& mpu = engine.parallel().mpu();

    auto data_iterator = train_loader.begin();
    for (size_t i = 0; i < train_loader.size(); ++i) {
      engine.zero_grad();
      const Tensor expected = plain.net->forward(batches[i].data);
      auto [output, label, loss] = schedule.forward_backward_step(
          engine, data_iterator, oslo::StepOptions().forward_only(false));
      EXPECT_EQ(engine.step(), i % 3 == 2);
      EXPECT_EQ(output.defined(), mpu.is_pipeline_last_stage());
      const Tensor own = part_of(expected, mpu), target = part_of(batches[i].target, mpu);
      if (output.defined()) {
        parity::expect_close(output, own.detach(), "output");
        EXPECT_TRUE(torch::equal(label, target));
      }
      if constexpr (kCounts) {
        const CountedLoss all = counted_loss(expected, batches[i].target);
        EXPECT_NEAR(loss.template item<double>(), all.sum.item<double>() / all.count.value(), 1e-9);
      } else {
        EXPECT_NEAR(loss.template item<double>(), mean_loss(own, target).item<double>(), 1e-9);
      }
      if (i % 3 != 2) continue;
      (plain.*by_hand)({batches.begin() + i - 2, batches.begin() + i + 1});
      expect_same_weights(model, plain.net);
    }
    EXPECT_TRUE(data_iterator == train_loader.end());

    engine.eval();
    auto again = train_loader->begin();
    auto [output, label, loss] = schedule.forward_backward_step(
        engine, again, oslo::StepOptions().forward_only(true).return_outputs(false));
    EXPECT_FALSE(output.defined() || label.defined());
    const Tensor own = part_of(batches[0].data, mpu), target = part_of(batches[0].target, mpu);
    if constexpr (!kCounts) {
      EXPECT_NEAR(loss.template item<double>(),
                  mean_loss(plain.net->forward(own), target).item<double>(), 1e-7);
    }
    expect_same_weights(model, plain.net);
  });
}

struct Shape {
  Grid grid;
  int chunks = 1;
};

const std::vector<Shape> kShapes = {{{1, 1, 2}}, {{1, 1, 2}, 2}, {{2, 1, 2}}, {{2, 1, 2}, 2},
                                    {{1, 2, 2}}, {{2, 1, 1}},    {{1, 1, 1}}};

TEST(EngineSchedule, AccumulatesAndClipsAsALoopByHand) {
  for (const auto& [grid, chunks] : kShapes) {
    for (const double clip : {kClip, 0.0}) {
      expect_schedule(grid, chunks, clip, mean_loss, &PlainLoop::step);
    }
  }
}

TEST(EngineSchedule, ACountedLossIsTheMeanOverAllThatCounts) {
  for (const auto& [grid, chunks] : kShapes) {
    for (const double clip : {kClip, 0.0}) {
      expect_schedule(grid, chunks, clip, counted_loss, &PlainLoop::counted_step);
    }
  }
}

/// Two inputs, as a tuple, and the config's micro-batches.
struct TwoInputsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, const Tensor& z) { return out(torch::tanh(in(x)) * z); }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(3, 5))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(5, 2))};
};
TORCH_MODULE(TwoInputs);

TEST(EngineSchedule, TakesItsMicroBatchesFromTheConfigAndSeveralInputs) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    TwoInputs model = make_seeded(3, [] { return TwoInputs(); });
    TwoInputs plain = make_seeded(3, [] { return TwoInputs(); });
    torch::optim::SGD optimizer(model->parameters(), 0.1), by_hand(plain->parameters(), 0.1);
    using Batch = std::tuple<Tensor, Tensor, Tensor>;
    const std::vector<Batch> batches = {
        {torch::ones({6, 3}), torch::arange(30.).view({6, 5}) / 30, torch::zeros({6, 2})}};
    auto [engine, loader] = oslo::initialize(
        model, optimizer, mean_loss, batches,
        Config::parse(R"({"parallel": {"pipeline": 2}, "NUM_MICRO_BATCHES": 3})"), in(world));
    oslo::PipelineSchedule schedule(engine);
    EXPECT_EQ(schedule.schedule().micro_batches, 3);
    schedule.forward_backward_step(engine, loader.begin());
    EXPECT_TRUE(engine.step());
    const auto& [x, z, y] = batches[0];
    mean_loss(plain->forward(x, z), y).backward();
    by_hand.step();
    for (const auto& item : plain->named_parameters()) {
      const Tensor& mine = *model->named_parameters().find(item.key());
      if (!is_here(mine)) continue;
      parity::expect_close(pipeline_parity::whole_here(mine.detach()), item.value().detach(),
                           item.key(), {1e-5, 1e-6});
    }
  });
}

}  // namespace
}  // namespace oslo::test::engines
