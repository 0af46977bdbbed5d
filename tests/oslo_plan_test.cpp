// `oslo plan` over a program of ours, this one, started again with --model, and over a library.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/models/gpt2.h"
#include "tests/support/tool_process.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// What a user's program does: it would go on to train.
int program(const char* ranks) {
  models::GPT2 model{models::GPT2Options()};
  oslo::InitializeOptions how;
  how.example_inputs = [&] { model->forward(torch::zeros({2, 8}, torch::kLong)); };
  oslo::initialize(
      model,
      oslo::Config::parse(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )" +
                          std::string(ranks) + "}}"),
      how);
  std::cout << "training\n";
  return 1;
}

std::string self() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

TEST(OsloPlan, PrintsTheTableOfAnyMeshAndEndsTheProgram) {
  oslo::test::ToolProcess tool({"plan", "-n", "8", self(), "--model", "4"});
  EXPECT_EQ(tool.finish(), 0) << tool.error();
  EXPECT_THAT(tool.output(),
              AllOf(HasSubstr("h.*.attn.c_attn.weight x 2"), HasSubstr("row would move"),
                    HasSubstr("[192, 64]"), HasSubstr("[48, 64]"), Not(HasSubstr("training"))));
}

TEST(OsloPlan, SaysWhetherAStepFits) {
  const auto ask = [](const std::string& memory, const std::string& config, int exit_code = 0) {
    oslo::test::ToolProcess tool(
        {"plan", "-n", "4", "--json", "--memory", memory, MODEL_LIBRARY, config});
    EXPECT_EQ(tool.finish(), exit_code) << tool.error();
    return nlohmann::json::parse(tool.output()).at("memory");
  };
  const std::string tensor = "model_parallelism.tensor_parallel_size=4";
  const nlohmann::json large = ask("1GB", tensor);
  EXPECT_EQ(large.at("budget"), 1000000000);
  ASSERT_EQ(large.at("stages").size(), 1);
  const nlohmann::json stage = large.at("stages")[0];
  EXPECT_EQ(stage.at("fits"), true);
  EXPECT_EQ(stage.at("computed_again"), 0);
  EXPECT_GT(stage.at("parameter_bytes"), 0);
  EXPECT_EQ(stage.at("gradient_bytes"), stage.at("parameter_bytes"));
  EXPECT_EQ(stage.at("optimizer_bytes").get<int64_t>(),
            2 * stage.at("parameter_bytes").get<int64_t>());
  EXPECT_GE(stage.at("peak"), stage.at("least"));
  EXPECT_NE(stage.at("at"), "");
  EXPECT_EQ(ask("1KB", tensor, 3).at("stages")[0].at("fits"), false);
  const nlohmann::json stages = ask("1GB", "model_parallelism.pipeline_parallel_size=2");
  EXPECT_EQ(stages.at("stages").size(), 2);

  oslo::test::ToolProcess table({"plan", "-n", "4", "--memory", "1GB", MODEL_LIBRARY, tensor});
  EXPECT_EQ(table.finish(), 0) << table.error();
  EXPECT_THAT(table.output(), AllOf(HasSubstr("memory of a rank in a step"), HasSubstr("all kept"),
                                    HasSubstr("fits, with nothing computed again")));
  oslo::test::ToolProcess wrong({"plan", "-n", "4", "--memory", "2 XB", MODEL_LIBRARY, tensor});
  EXPECT_EQ(wrong.finish(), 2);
  EXPECT_THAT(wrong.error(), AllOf(HasSubstr("2 XB"), HasSubstr("1.5GiB")));
}

TEST(OsloPlan, ExplainsWhatMoves) {
  const std::string page =
      std::filesystem::temp_directory_path() / c10::str("oslo_plan_test_", getpid(), ".html");
  oslo::test::ToolProcess text({"plan", "-n", "4", "--explain", "--html", page, MODEL_LIBRARY});
  EXPECT_EQ(text.finish(), 0) << text.error();
  EXPECT_THAT(text.output(), AllOf(HasSubstr("first.weight"), HasSubstr("dim 1 over tensor: 64+64"),
                                   HasSubstr("all_reduce over tensor, 3072 B: partial sum ends")));
  std::ifstream file(page);
  const std::string html{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(html, AllOf(HasSubstr("<!doctype html>"), HasSubstr("partial sum ends")));
  std::filesystem::remove(page);

  oslo::test::ToolProcess json({"plan", "-n", "4", "--explain", "--json", MODEL_LIBRARY});
  EXPECT_EQ(json.finish(), 0) << json.error();
  const auto explained = nlohmann::json::parse(json.output()).at("explain");
  EXPECT_EQ(explained.at("totals").at(0).at("bytes"), 3072);

  oslo::test::ToolProcess alone({"plan", "-n", "4", "--html", page, MODEL_LIBRARY});
  EXPECT_EQ(alone.finish(), 2);
  EXPECT_THAT(alone.error(), HasSubstr("--explain"));
  oslo::test::ToolProcess nowhere(
      {"plan", "-n", "4", "--explain", "--html", "/no/such/folder/page.html", MODEL_LIBRARY});
  EXPECT_EQ(nowhere.finish(), 1);
  EXPECT_THAT(nowhere.error(), HasSubstr("cannot write /no/such/folder/page.html"));
}

TEST(OsloPlan, PrintsJson) {
  oslo::test::ToolProcess tool({"plan", "-n", "1024", "--json", "--", self(), "--model", "2"});
  EXPECT_EQ(tool.finish(), 0) << tool.error();
  EXPECT_GT(nlohmann::json::parse(tool.output()).size(), 0);
}

TEST(OsloPlan, ReadsTheModelOfALibrary) {
  oslo::test::ToolProcess tool({"plan", "-n", "4", MODEL_LIBRARY});
  EXPECT_EQ(tool.finish(), 0) << tool.error();
  EXPECT_THAT(tool.output(), AllOf(HasSubstr("first.weight"), HasSubstr("column: shard(0)"),
                                   HasSubstr("row: shard(1)"), HasSubstr("[64, 64]")));
  oslo::test::ToolProcess two(
      {"plan", "-n", "4", "--json", MODEL_LIBRARY, "tensor_parallel_size=2"});
  EXPECT_EQ(two.finish(), 1);
  EXPECT_THAT(two.error(), HasSubstr("tensor_parallel_size"));
  oslo::test::ToolProcess half(
      {"plan", "-n", "4", MODEL_LIBRARY, "model_parallelism.tensor_parallel_size=2"});
  EXPECT_EQ(half.finish(), 0) << half.error();
  EXPECT_THAT(half.output(), HasSubstr("[128, 64]"));
}

TEST(OsloPlan, ALibraryWithoutAModelFails) {
  oslo::test::ToolProcess other({"plan", "-n", "2", "libc.so.6"});
  EXPECT_EQ(other.finish(), 127);
  EXPECT_THAT(other.error(), HasSubstr("there is no file libc.so.6"));
  oslo::test::ToolProcess none({"plan", "-n", "2", OSLO_LIBRARY});
  EXPECT_EQ(none.finish(), 126);
  EXPECT_THAT(none.error(), HasSubstr("offers no model; write OSLO_MODEL_LIBRARY"));
  const std::string path =
      std::filesystem::path(MODEL_LIBRARY).parent_path() / "no_library_really.so";
  std::ofstream(path) << "text";
  oslo::test::ToolProcess text({"plan", "-n", "2", path});
  EXPECT_EQ(text.finish(), 126);
  EXPECT_THAT(text.error(), HasSubstr("cannot load"));
  std::filesystem::remove(path);
}

TEST(OsloPlan, WhatCannotBePlannedFails) {
  oslo::test::ToolProcess sizes({"plan", "-n", "3", self(), "--model", "2"});
  EXPECT_NE(sizes.finish(), 0);
  EXPECT_THAT(sizes.error(), HasSubstr("does not divide the world size 3"));
  oslo::test::ToolProcess missing({"plan", "-n", "3", "./no_such_program"});
  EXPECT_EQ(missing.finish(), 127);
  EXPECT_THAT(missing.error(), HasSubstr("oslo plan: there is no file ./no_such_program"));
  oslo::test::ToolProcess nothing({"plan", "-n", "3"});
  EXPECT_EQ(nothing.finish(), 2);
}

// A rank would print its plan and end with 0, as if it had trained.
TEST(OsloPlan, ItsVariablesLeftInAnEnvironmentEndNoTraining) {
  const auto run = [](const char* launcher, const char* ranks) {
    std::vector<std::string> words = {"env", "-u", "OSLO_LAUNCHER",
                                      std::string("OSLO_PLAN_RANKS=") + ranks};
    if (*launcher != '\0') words.push_back(std::string("OSLO_LAUNCHER=") + launcher);
    words.insert(words.end(), {self(), "--model", "1"});
    std::string command;
    for (const std::string& word : words) command += "'" + word + "' ";
    FILE* const pipe = popen((command + "2>&1").c_str(), "r");
    std::string output;
    for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) output += static_cast<char>(c);
    pclose(pipe);
    return output;
  };
  EXPECT_THAT(run("", "8"),
              AllOf(HasSubstr("training\n"), HasSubstr("OSLO_PLAN_RANKS=8 is ignored")));
  EXPECT_THAT(run("plan", "8"),
              AllOf(HasSubstr("the program ends here"), Not(HasSubstr("training\n"))));
  for (const char* ranks : {"8x", "", "0", "-1", " 8", "99999999999", "65537"}) {
    EXPECT_THAT(run("plan", ranks),
                AllOf(HasSubstr("is no number of ranks"), Not(HasSubstr("training\n"))))
        << ranks;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--model") == 0) {
    try {
      return program(argv[2]);
    } catch (const std::exception& error) {
      std::cerr << error.what() << "\n";
      return 1;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
