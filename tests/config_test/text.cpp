// A config as text, as a file and as JSON; overrides on the command line.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "oslo_cpp/config/config.h"
#include "tests/config_test/config_errors.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo::config_test {
namespace {

TEST(ConfigText, CommentsAreAllowed) {
  Config config = Config::parse("{ // OSLO\n\"model_parallelism\": {/* all */ \"enable\": true}}");
  EXPECT_TRUE(config.values().enabled);
}

TEST(ConfigText, BadJsonNamesLineAndColumn) {
  expect_contains(parse_error("{\n  \"train\": {,}\n}"), {"not valid JSON", "line 2, column 13"});
  expect_contains(parse_error(""), {"not valid JSON", "line 1, column 1"});
  expect_contains(parse_error("{} {}"), {"not valid JSON", "line 1, column 4"});
}

TEST(ConfigText, DuplicateKeysNameTheirPath) {
  expect_contains(
      parse_error(R"({"train": {"dist": {"tensor_parallel_size": 2, "tensor_parallel_size": 4}}})"),
      {"duplicate key 'train.dist.tensor_parallel_size'"});
  expect_contains(parse_error(R"({"train": {}, "train": {}})"), {"duplicate key 'train'"});
  // The same name in two objects is no duplicate.
  EXPECT_NO_THROW(Config::parse(R"({"train": {"amp": {"enabled": false},
                                              "activation_checkpoint": {"enabled": false}}})"));
}

// "mixup" has the fewest letters in common with some key, and nothing to do with it.
TEST(ConfigText, OnlyANameThatIsNearIsSaidToBeNearest) {
  const std::string far = parse_error(R"({"mixup": 2})");
  expect_contains(far, {"unknown key 'mixup'; the names at the top are ", "model_parallelism"});
  EXPECT_EQ(far.find("nearest"), std::string::npos) << far;
  expect_contains(parse_error(R"({"trian": {}})"),
                  {"the nearest valid name at the top is 'train'"});
  expect_contains(parse_error(R"({"train": {"dits": {}}})"),
                  {"the nearest valid name in 'train' is 'dist'"});
  expect_contains(parse_error(R"({"model_paralelism": {}})"),
                  {"the nearest valid name at the top is 'model_parallelism'"});
  expect_contains(parse_error(R"({"train": {"dist": {"tp_size": 2}}})"),
                  {"the nearest valid name in 'train.dist' is 'tensor_parallel_size'"});
  // Where it belongs is said in any case.
  expect_contains(parse_error(R"({"tensor_parallel_size": 2})"),
                  {"'tensor_parallel_size' belongs in 'model_parallelism.tensor_parallel_size'",
                   "the names at the top"});
}

// Nothing that a user can write may crash: deep nesting, long names, broken UTF-8.
TEST(ConfigText, HostileTextIsAnError) {
  std::string deep(100000, '[');
  expect_contains(parse_error(deep), {"nested deeper"});
  expect_contains(parse_error("{\"train\": " + deep + std::string(deep.size(), ']') + "}"),
                  {"nested deeper"});
  std::string message = parse_error("{\"" + std::string(10000, 'x') + "\": 1}");
  expect_contains(message, {"unknown key", "..."});
  EXPECT_LT(message.size(), 1000u);
  expect_contains(parse_error("{\"\xff\": 1}"), {"not valid JSON", "line 1, column 3"});
  expect_contains(error_of([] { Config::from_json({{"\xff", 1}}); }), {"UTF-8"});
}

TEST(ConfigFile, NamesTheFile) {
  const test::TemporaryDirectory folder;
  const std::string path = folder / "config.json";
  test::write_contents(path, R"({"parallel": {"tensor": {"size": 2, "mode": "1d"}}})");
  EXPECT_EQ(Config::from_file(path).resolve(4).tensor, 2);
  test::write_contents(path, "{\"parallel\": {\"tensors\": 2}}");
  expect_contains(error_of([&] { Config::from_file(path); }), {path, "'parallel.tensors'"});
  test::write_contents(path, "{\n!");
  expect_contains(error_of([&] { Config::from_file(path); }), {path, "line 2"});
  expect_contains(error_of([&] { Config::from_file(folder.path()); }), {"is a folder"});
  std::filesystem::remove_all(folder.path());
  expect_contains(error_of([&] { Config::from_file(path); }), {path, "cannot be opened"});
}

TEST(ConfigJson, GoesInAndOut) {
  nlohmann::json document = {{"model_parallelism", {{"enable", true}, {"tensor_parallel_size", 2}}},
                             {"plan", {{"wte", "vocab"}}}};
  Config config = Config::from_json(document);
  EXPECT_EQ(config.resolve(4).data, 2);
  EXPECT_EQ(config.to_json(), document);
  EXPECT_EQ(Config::from_json(config.to_json()).to_string(), config.to_string());
  EXPECT_EQ(Config().to_json(), nlohmann::json::object());
}

TEST(ConfigSet, OverridesInTheDialectsOwnPaths) {
  Config config = Config::parse(R"({"train": {"dist": {"tensor_parallel_size": 8}}})");
  config.set("train.dist.tensor_parallel_size=4");
  config.set("train.dist.tensor_parallel_size=2");  // the last one wins
  config.set("train.amp.enabled=false");
  config.set("rank_order=dp-pp-tp");  // no JSON: a string
  ParallelSizes sizes = config.resolve(8);
  EXPECT_EQ(sizes.tensor, 2);
  EXPECT_EQ(sizes.data, 4);
  EXPECT_EQ(sizes.rank_order, RankOrder::dp_pp_tp);
  config.set("train.dist.data_parallel_size=2");
  EXPECT_NE(error_of([&] { config.resolve(8); }), "");
  config.set("train.dist.data_parallel_size=null");
  EXPECT_EQ(config.resolve(8).data, 4);
}

TEST(ConfigSet, FirstOverrideOfAnEmptyConfigDecides) {
  Config config;
  config.set("rank_order=pp-dp-tp");
  EXPECT_EQ(config.values().dialect, ConfigDialect::none);
  config.set("model_parallelism.tensor_parallel_size=2");
  EXPECT_EQ(config.values().dialect, ConfigDialect::oslo);
  EXPECT_EQ(config.resolve(4).tensor, 2);
  EXPECT_NE(error_of([&] { config.set("train.dist.tensor_parallel_size=2"); }), "");
}

TEST(ConfigSet, OrderOfOverridesDoesNotMatter) {
  Config size_first;
  size_first.set("parallel.tensor.size=2");
  expect_contains(error_of([&] { size_first.resolve(2); }), {"no mode"});
  size_first.set("parallel.tensor.mode=1d");
  EXPECT_EQ(size_first.resolve(2).tensor, 2);
  Config mode_first;
  mode_first.set("parallel.tensor.mode=1d");
  expect_contains(error_of([&] { mode_first.resolve(2); }), {"no size"});
  mode_first.set("parallel.tensor.size=2");
  EXPECT_EQ(mode_first.resolve(2).tensor, 2);
  Config bare;  // a bare size is short for {"size": n}
  bare.set("parallel.tensor=2");
  bare.set("parallel.tensor.mode=1d");
  EXPECT_EQ(bare.resolve(2).tensor, 2);
}

TEST(ConfigSet, IsStrictAndChangesNothingOnError) {
  Config config = Config::parse(R"({"train": {"dist": {"tensor_parallel_size": 2}}})");
  const std::string before = config.to_string();
  auto set_error = [&](const std::string& assignment) {
    std::string message = error_of([&] { config.set(assignment); });
    expect_contains(message, {"override '" + assignment + "'"});
    EXPECT_EQ(config.to_string(), before);
    EXPECT_EQ(config.values().tensor_parallel_size, 2);
    return message;
  };
  expect_contains(set_error("train.dist.tensor_size=2"),
                  {"'train.dist.tensor_size'", "'tensor_parallel_size'"});
  expect_contains(set_error("train.dist.tensor_parallel_size=two"),
                  {"'train.dist.tensor_parallel_size'", "an integer", "the string \"two\""});
  expect_contains(set_error("train.dist.tensor_parallel_size.x=2"), {"no keys below it"});
  expect_contains(set_error("train.dist.tensor_parallel_size="), {"no value"});
  expect_contains(set_error("train.dist.tensor_parallel_size"), {"path=value"});
  expect_contains(set_error("=2"), {"path=value"});
  expect_contains(set_error("train..dist=2"), {"'train.'"});
  expect_contains(set_error(R"(train.dist={"tensor_parallel_size": 2, "tensor_parallel_size": 4})"),
                  {"duplicate"});
}

TEST(ConfigSet, CopiesAreIndependent) {
  Config first = Config::parse(R"({"model_parallelism": {"tensor_parallel_size": 2}})");
  Config second = first;
  second.set("model_parallelism.tensor_parallel_size=4");
  EXPECT_EQ(first.resolve(4).tensor, 2);
  EXPECT_EQ(second.resolve(4).tensor, 4);
}

}  // namespace
}  // namespace oslo::config_test
