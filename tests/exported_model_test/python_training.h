#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallelizers/modules/model_view.h"
#include "tests/exported_model_test/python_run.h"
#include "tests/support/own_draws.h"
#include "tests/support/parity.h"

// Models that Python exported, trained here: losses, weights, buffers and evaluation are those that
// Python had, on one rank and on several.
namespace oslo::test {

struct Grid {
  int data = 1, tensor = 1;
  std::string config = {};  ///< in place of that of tensor ranks

  std::string text() const { return config.empty() ? parity::tensor_parallel(tensor) : config; }
};

/// How a model is trained, and how near to Python it comes.
struct Training {
  Loss loss = cross_entropy;
  std::function<void(ExportedModule&)> prepare = {};     ///< called on the loaded model
  std::function<void(const ParallelModel&)> after = {};  ///< called after the last step
  std::optional<uint64_t> draws = {};  ///< each rank's dropout is that of a process so seeded
  double of_loss = 1e-9;               ///< relative
  parity::Tolerance of_state = parity::kTrained;
};

/// Parameters and buffers after Python's last step, under every name that they have.
inline void expect_state(const ModelView& view, const PythonRun& run,
                         const parity::Tolerance& tolerance) {
  std::map<std::string, at::Tensor> found;
  for (const ParameterView& each : view.parameters()) found[each.path] = each.in_use();
  for (const BufferView& each : view.buffers()) found[each.path] = each.tensor;
  int compared = 0;
  for (const auto& [name, expected] : run.told()) {
    if (!name.starts_with("state.")) continue;
    const std::string path = name.substr(6);
    ASSERT_EQ(found.count(path), 1u) << path;
    const at::Tensor whole = full_tensor(found[path].detach());
    EXPECT_EQ(whole.scalar_type(), expected.scalar_type()) << path;
    parity::expect_close(whole.to(at::kDouble), expected.to(at::kDouble), path, tolerance);
    ++compared;
  }
  EXPECT_GE(compared, 4);
}

template <typename Model>
void expect_evaluation(Model& model, const PythonRun& run, const parity::Tolerance& tolerance) {
  model.eval();
  const torch::NoGradGuard no_grad;
  const auto outputs = tensors_of(model.forward(values_of(run.inputs(0))));
  const auto expected = run.evaluation();
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    parity::expect_close(full_tensor(outputs[i]), expected[i], "evaluation", tolerance);
  }
}

/// Five steps on every rank of the grid.
inline void expect_python(const PythonRun& run, const Grid& grid, const Training& how_trained) {
  run_as_threads(grid.data * grid.tensor, [&](World world) {
    at::set_num_threads(1);
    const auto model = run.load();
    if (how_trained.prepare) how_trained.prepare(*model);
    std::optional<OwnDraws> draws;
    if (how_trained.draws) draws.emplace(*how_trained.draws);
    torch::optim::AdamW optimizer = adam_of(*model);
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(model->example_inputs()); };
    ParallelModel parallel = initialize(model, Config::parse(grid.text()), how);
    const MPU& mpu = parallel.mpu();
    DistributedDataParallel<ExportedModule> ddp(model, mpu.get_data_parallel_group());
    const auto own = [&](const at::Tensor& whole) {
      return whole.tensor_split(grid.data)[mpu.get_data_parallel_rank()];
    };
    for (int step = 0; step < kSteps; ++step) {
      std::vector<at::Tensor> inputs = run.inputs(step);
      if (grid.data > 1) {
        for (at::Tensor& input : inputs) input = own(input);
      }
      optimizer.zero_grad();
      at::Tensor seen;
      const auto train = [&] {
        const at::Tensor output = tensors_of(ddp.forward(values_of(inputs))).front();
        seen = how_trained.loss(output, own(run.target(step)));
        seen.backward();
      };
      if (step + 1 == kSteps) {
        parallel.count(train);
      } else {
        train();
      }
      optimizer.step();
      if (grid.data > 1) continue;  // each replica has the loss of its own rows
      const double expected = run.loss(step).item<double>();
      EXPECT_NEAR(full_tensor(seen).item<double>(), expected, how_trained.of_loss * expected)
          << "step " << step;
    }
    parallel.check();
    if (how_trained.after) how_trained.after(parallel);
    expect_evaluation(*model, run, how_trained.of_state);
    expect_state(ModelView(model), run, how_trained.of_state);
  });
}

/// Five steps on two stages, a batch as one micro-batch or as several. What forward takes is cut
/// along the batch.
inline void expect_pipeline(const PythonRun& run, int micro_batches, const Training& how_trained) {
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    const auto model = run.load();
    if (how_trained.prepare) how_trained.prepare(*model);
    std::optional<OwnDraws> draws;
    if (how_trained.draws) draws.emplace(*how_trained.draws);
    torch::optim::AdamW optimizer = adam_of(*model);
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(values_of(run.inputs(0))); };
    const char* config = R"({"model_parallelism": {"enable": true, "pipeline_parallel_size": 2}})";
    const ParallelModel parallel = initialize(model, Config::parse(config), how);
    EXPECT_EQ(parallel.plan().pipeline.stages, 2);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(micro_batches));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      std::vector<at::Tensor> batch = run.inputs(step);
      batch.push_back(run.target(step));
      const auto result =
          schedule.forward_backward_step(batch, [&](const std::vector<at::Tensor>& micro) {
            const std::vector<at::Tensor> inputs(micro.begin(), micro.end() - 1);
            return how_trained.loss(tensors_of(model->forward(values_of(inputs))).front(),
                                    micro.back());
          });
      optimizer.step();
      const double expected = run.loss(step).item<double>();
      EXPECT_NEAR(result.loss.item<double>(), expected, how_trained.of_loss * expected)
          << "step " << step;
    }
    expect_evaluation(*model, run, how_trained.of_state);
    expect_state(ModelView(model), run, how_trained.of_state);
  });
}

/// Calls of a collective in the tensor group, in the last step.
inline int64_t calls_of(const ParallelModel& parallel, const std::string& operation) {
  int64_t calls = 0;
  for (const PlanTraffic& line : parallel.plan().traffic) {
    if (line.entry.operation == operation) calls += line.entry.traffic.calls;
  }
  return calls;
}

/// On one rank nothing communicates.
inline void expect_silent(const ParallelModel& parallel) {
  EXPECT_TRUE(parallel.plan().traffic.empty());
}

}  // namespace oslo::test
