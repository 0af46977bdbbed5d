// Programs that the repository holds, and such as Python exports now, trained as in Python.
#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/exported_model_test/python_training.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

TEST(ExportedTraining, AnMlpWithDropoutDrawsWhatPythonDrew) {
  const PythonRun run("mlp");
  // torch.manual_seed(5) in Python; nobody else draws on one rank.
  expect_python(run, {},
                {.loss = mean_square,
                 .prepare = [](ExportedModule&) { at::manual_seed(5); },
                 .after = expect_silent});
}

TEST(ExportedTraining, AnMlpWithoutDropoutTrainsAsInPython) {
  const Training still = {.loss = mean_square, .prepare = [](ExportedModule& model) {
                            model.named_children()["drop"]->eval();
                          }};
  const PythonRun run("mlp", "mlp_without_dropout");
  expect_python(run, {1, 1}, still);
  expect_python(run, {1, 2}, still);
}

TEST(ExportedTraining, AConvolutionalNetWithBatchNormsTrainsAsInPython) {
  const PythonRun run("conv");
  expect_python(run, {1, 1}, {.after = expect_silent});
  expect_python(run, {1, 2}, {});
}

TEST(ExportedTraining, WhatIsCalledTwiceAndHasTwoNamesTrainsAsInPython) {
  const PythonRun run("twice");
  expect_python(run, {1, 1}, {.loss = mean_square, .after = expect_silent});
  expect_python(run, {1, 2}, {.loss = mean_square});
  expect_python(run, {1, 3}, {.loss = mean_square});
}

TEST(ExportedTraining, AGpt2TrainsAsInPython) {
  const PythonRun run("gpt2");
  expect_python(run, {1, 1}, {.after = expect_silent});
  expect_python(run, {1, 2}, {.after = [](const ParallelModel& parallel) {
                  EXPECT_TRUE(parallel.plan().gathers.empty()) << parallel.plan().to_string();
                  // Four a block, embedding, head, and two of the loss.
                  EXPECT_EQ(calls_of(parallel, "all_reduce"), 12) << parallel.plan().to_string();
                }});
  expect_python(run, {2, 1}, {});
  expect_python(run, {2, 2}, {});
}

TEST(ExportedTraining, AVisionTransformerTrainsAsInPython) {
  const PythonRun run("vit");
  expect_python(run, {1, 1}, {.after = expect_silent});
  expect_python(run, {1, 2}, {});
  expect_python(run, {2, 1}, {});
}

TEST(ExportedTraining, StagesOfAPipelineTrainAsInPython) {
  expect_pipeline(PythonRun("gpt2"), 2, {});
  expect_pipeline(PythonRun("vit"), 3, {});
  expect_pipeline(PythonRun("conv"), 1, {});  // its batch norms see the whole batch
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
    expect_python(PythonRun(name, "", folder.path()), {1, 2}, {});
  }
  expect_python(PythonRun("mlp", "mlp_without_dropout", folder.path()), {1, 2},
                {.loss = mean_square,
                 .prepare = [](ExportedModule& model) { model.named_children()["drop"]->eval(); }});
  // In bfloat16 another order of sums is another number, and on one rank it is the same.
  expect_python(PythonRun("mixed", "", folder.path()), {1, 1},
                {.loss = mean_square, .of_loss = 1e-6, .of_state = {1e-6, 1e-8}});
}

}  // namespace
}  // namespace oslo::test
