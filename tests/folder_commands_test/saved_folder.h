#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/resharding_test/resharding_layouts.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_process.h"

namespace oslo::folder_commands_test {

namespace fs = std::filesystem;
using namespace resharding_test;  // NOLINT: the models and layouts of those tests
using test::Words;

/// A parallel checkpoint of 2 x 2 ranks with a config.json, and `oslo` for folders beside it.
class FolderCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    on_grid({"tensor 2 x pipeline 2", 2, 2}, 1, [&](ParallelModel& parallel, Gpt2&) {
      parallel.save_parallelized(
          ckpt(), SaveOptions().config(small_config().to_json()).extra({{"step", 7}}));
    });
  }

  std::string in(const std::string& name) const { return folder_ / name; }
  std::string ckpt() const { return in("ckpt"); }

  /// Runs `oslo`, which must end with `exit_code`; what it wrote to either stream.
  static std::string oslo(const Words& words, int exit_code = 0) {
    test::ToolProcess tool(words);
    EXPECT_EQ(tool.finish(), exit_code) << tool.error();
    return exit_code == 0 ? tool.output() : tool.error();
  }

  /// The folder has the model that was saved.
  static void expect_loads(const std::string& path) {
    const Gpt2 model = make_gpt2(2);
    load_state(*model, path);
    expect_values(model, make_gpt2(1));
  }

  const test::TemporaryDirectory folder_;
};

}  // namespace oslo::folder_commands_test
