// Models that Python exported, trained here: losses, weights, buffers and evaluation are those that
// Python had, on one rank and on several.
#include <gmock/gmock.h>

#include <cstdlib>

#include "parallelizers/modules/model_view.h"
#include "tests/exported_model_test/python_run.h"
#include "tests/support/parity.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using parity::expect_close;
using parity::kTrained;
using torch::Tensor;

struct Grid {
  int data = 1, tensor = 1;
};

std::string config_of(const Grid& grid) {
  return parity::tensor_parallel(grid.tensor);
}

/// Parameters and buffers after Python's last step, under every name that they have.
void expect_state(const std::shared_ptr<ExportedModule>& model, const PythonRun& run) {
  const ModelView view(model);
  std::map<std::string, Tensor> found;
  for (const ParameterView& each : view.parameters()) found[each.path] = each.in_use();
  for (const BufferView& each : view.buffers()) found[each.path] = each.tensor;
  int compared = 0;
  for (const auto& [name, expected] : run.told()) {
    if (!name.starts_with("state.")) continue;
    const std::string path = name.substr(6);
    ASSERT_EQ(found.count(path), 1u) << path;
    const Tensor whole = full_tensor(found[path].detach());
    EXPECT_EQ(whole.scalar_type(), expected.scalar_type()) << path;
    expect_close(whole.to(torch::kDouble), expected.to(torch::kDouble), path, kTrained);
    ++compared;
  }
  EXPECT_GE(compared, 5);
}

void expect_evaluation(ExportedModule& model, const PythonRun& run) {
  model.eval();
  const torch::NoGradGuard no_grad;
  const auto outputs = tensors_of(model.forward(values_of(run.inputs(0))));
  const auto expected = run.evaluation();
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    expect_close(full_tensor(outputs[i]), expected[i], "evaluation", kTrained);
  }
}

/// Five steps on every rank of the grid. `prepare` is called on the loaded model.
void expect_python(const PythonRun& run, const Grid& grid, const Loss& loss,
                   const std::function<void(ExportedModule&)>& prepare = {},
                   const std::function<void(const ParallelModel&)>& after = {}) {
  run_as_threads(grid.data * grid.tensor, [&](World world) {
    at::set_num_threads(1);
    const auto model = run.load();
    if (prepare) prepare(*model);
    torch::optim::AdamW optimizer = adam_of(*model);
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(model->example_inputs()); };
    ParallelModel parallel = initialize(model, Config::parse(config_of(grid)), how);
    const MPU& mpu = parallel.mpu();
    DistributedDataParallel<ExportedModule> ddp(model, mpu.get_data_parallel_group());
    const auto own = [&](const Tensor& whole) {
      return whole.tensor_split(grid.data)[mpu.get_data_parallel_rank()];
    };
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Tensor> inputs = run.inputs(step);
      if (grid.data > 1) inputs.front() = own(inputs.front());
      optimizer.zero_grad();
      Tensor seen;
      const auto train = [&] {
        const Tensor output = tensors_of(ddp.forward(values_of(inputs))).front();
        seen = loss(output, own(run.target(step)));
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
      EXPECT_NEAR(full_tensor(seen).item<double>(), expected, 1e-9 * expected) << "step " << step;
    }
    parallel.check();
    if (after) after(parallel);
    expect_evaluation(*model, run);
    expect_state(model, run);
  });
}

/// Calls of a collective in the tensor group, in the last step.
int64_t calls_of(const ParallelModel& parallel, const std::string& operation) {
  int64_t calls = 0;
  for (const PlanTraffic& line : parallel.plan().traffic) {
    if (line.entry.operation == operation) calls += line.entry.traffic.calls;
  }
  return calls;
}

/// On one rank nothing communicates.
void expect_silent(const ParallelModel& parallel) {
  EXPECT_TRUE(parallel.plan().traffic.empty());
}

TEST(ExportedTraining, AnMlpWithDropoutDrawsWhatPythonDrew) {
  const PythonRun run("mlp");
  // torch.manual_seed(5) in Python; nobody else draws on one rank.
  expect_python(
      run, {}, mean_square, [](ExportedModule&) { at::manual_seed(5); }, expect_silent);
}

TEST(ExportedTraining, AnMlpWithoutDropoutTrainsAsInPython) {
  const auto still = [](ExportedModule& model) { model.named_children()["drop"]->eval(); };
  const PythonRun run("mlp", "mlp_without_dropout");
  expect_python(run, {1, 1}, mean_square, still);
  expect_python(run, {1, 2}, mean_square, still);
}

TEST(ExportedTraining, AConvolutionalNetWithBatchNormsTrainsAsInPython) {
  const PythonRun run("conv");
  expect_python(run, {1, 1}, cross_entropy, {}, expect_silent);
  expect_python(run, {1, 2}, cross_entropy);
}

TEST(ExportedTraining, AGpt2TrainsAsInPython) {
  const PythonRun run("gpt2");
  expect_python(run, {1, 1}, cross_entropy, {}, expect_silent);
  expect_python(run, {1, 2}, cross_entropy, {}, [](const ParallelModel& parallel) {
    EXPECT_TRUE(parallel.plan().gathers.empty()) << parallel.plan().to_string();
    // Four a block, embedding, head, and two of the loss.
    EXPECT_EQ(calls_of(parallel, "all_reduce"), 12) << parallel.plan().to_string();
  });
  expect_python(run, {2, 1}, cross_entropy);
  expect_python(run, {2, 2}, cross_entropy);
}

TEST(ExportedTraining, AVisionTransformerTrainsAsInPython) {
  const PythonRun run("vit");
  expect_python(run, {1, 1}, cross_entropy, {}, expect_silent);
  expect_python(run, {1, 2}, cross_entropy);
  expect_python(run, {2, 1}, cross_entropy);
}

/// Two stages, a batch as one micro-batch or as two.
void expect_pipeline(const PythonRun& run, int micro_batches, const Loss& loss) {
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    const auto model = run.load();
    torch::optim::AdamW optimizer = adam_of(*model);
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(values_of(run.inputs(0))); };
    const char* config = R"({"model_parallelism": {"enable": true, "pipeline_parallel_size": 2}})";
    const ParallelModel parallel = initialize(model, Config::parse(config), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(micro_batches));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto result = schedule.forward_backward_step(
          {run.inputs(step).front(), run.target(step)}, [&](const std::vector<Tensor>& micro) {
            return loss(tensors_of(model->forward(micro[0])).front(), micro[1]);
          });
      optimizer.step();
      const double expected = run.loss(step).item<double>();
      EXPECT_NEAR(result.loss.item<double>(), expected, 1e-9 * expected) << "step " << step;
    }
    expect_evaluation(*model, run);
    expect_state(model, run);
  });
}

TEST(ExportedTraining, StagesOfAPipelineTrainAsInPython) {
  expect_pipeline(PythonRun("gpt2"), 2, cross_entropy);
  expect_pipeline(PythonRun("vit"), 3, cross_entropy);
  expect_pipeline(PythonRun("conv"), 1, cross_entropy);  // its batch norms see the whole batch
}

/// A Python with torch, where this machine has one: named by OSLO_PYTHON, of `./dev test`, or of
/// `./dev bench`.
std::string find_python() {
  if (const char* named = std::getenv("OSLO_PYTHON")) return named;
  const std::filesystem::path source = OSLO_SOURCE_DIR;
  if (std::filesystem::exists(source / ".venv-transformers/complete")) {
    return source / ".venv-transformers/bin/python";
  }
  const std::filesystem::path peers = source / ".venv-peers/bin/python";
  return std::filesystem::exists(peers) ? peers.string() : "";
}

TEST(ExportedTraining, WhatPythonExportsNowTrainsToo) {
  const std::string python = find_python();
  if (python.empty()) {
    GTEST_SKIP() << "there is no Python with PyTorch: name one by OSLO_PYTHON, or let "
                    "./dev test install one";
  }
  const TemporaryDirectory folder;
  const std::string command = python +
                              " " OSLO_SOURCE_DIR "/tests/exported_model_test/export_models.py " +
                              folder.path().string() + " > " + (folder / "said").string() + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  for (const char* name : {"conv", "gpt2", "vit"}) {
    expect_python(PythonRun(name, "", folder.path()), {1, 2}, cross_entropy);
  }
  expect_python(PythonRun("mlp", "mlp_without_dropout", folder.path()), {1, 2}, mean_square,
                [](ExportedModule& model) { model.named_children()["drop"]->eval(); });
}

}  // namespace
}  // namespace oslo::test
