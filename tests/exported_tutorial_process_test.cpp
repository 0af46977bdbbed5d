// The program of docs/bring-your-model.md, on ranks that are processes, and what Python gets back.
#include <gmock/gmock.h>

#include <set>
#include <string>

#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_process.h"
#include "tests/support/transformers.h"

namespace oslo::test {
namespace {

using ::testing::HasSubstr;

const std::string kExported = OSLO_SOURCE_DIR "/tests/data/exported";

/// The numbers behind "loss" in the lines of rank 0.
std::vector<double> losses_in(const std::string& text) {
  std::vector<double> losses;
  for (const std::string& line : lines_of(text)) {
    const size_t place = line.find("  loss ");
    if (place != std::string::npos) losses.push_back(std::stod(line.substr(place + 7)));
  }
  return losses;
}

/// Trains a program on one rank and on two, into "one" and "two" of the folder, until what is left
/// of the loss is `left`.
void expect_trains(const std::string& program, const std::string& planned, double left,
                   const TemporaryDirectory& folder) {
  const auto run = [&](const char* ranks, const std::string& name) {
    ToolProcess tool(
        {"run", "-n", ranks, "--", TUTORIALS "/train_exported", program, (folder / name).string()});
    EXPECT_EQ(tool.finish(), 0) << tool.error();
    return tool.output();
  };
  const std::string two = run("2", "two"), one = run("1", "one");
  EXPECT_THAT(two, HasSubstr(planned));
  const auto losses = losses_in(two), expected = losses_in(one);
  ASSERT_EQ(losses.size(), 20u);
  ASSERT_EQ(expected.size(), 20u);
  EXPECT_LT(losses.back(), left * losses.front());
  // Floats are added in another order, which AdamW's first steps, of one size whatever the
  // gradient, make more of: 3e-4 were seen. Other dropout would be 1e-2.
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-3);
}

TEST(ExportedTutorial, TrainsOnTwoRanksAsOnOneAndPythonReadsItsWeights) {
  const TemporaryDirectory folder;
  expect_trains(kExported + "/gpt2.pt2", "h.*.attn.c_attn.weight x 2", 0.5, folder);
  // What load_state_dict wants: the names of Python's state_dict, all of them and no others.
  std::set<std::string> written, wanted;
  for (const auto& [name, tensor] : read_torch_bin(folder / "two/pytorch_model.bin")) {
    written.insert("state." + name);
  }
  for (const auto& [name, tensor] : read_torch_bin(kExported + "/gpt2.bin")) {
    if (name.starts_with("state.")) wanted.insert(name);
  }
  EXPECT_EQ(written, wanted);
}

TEST(ExportedTutorial, TrainsAModelOfTransformers) {
  OSLO_NEEDS_TRANSFORMERS();
  const TemporaryDirectory folder;
  const std::string program = (folder / "gpt2.pt2").string();
  run_with_transformers("tutorials/export_transformer.py", "'" + program + "'");
  expect_trains(program, "transformer.h.*.attn.c_attn.weight x 2", 0.8, folder);
}

TEST(ExportedTutorial, SaysWhatItTakes) {
  ToolProcess tool({"run", "-n", "1", "--", TUTORIALS "/train_exported"});
  EXPECT_EQ(tool.finish(), 2);
  EXPECT_THAT(tool.error(), HasSubstr("usage: train_exported model.pt2 folder"));
}

}  // namespace
}  // namespace oslo::test
