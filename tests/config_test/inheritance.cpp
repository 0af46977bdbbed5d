// Configs that inherit from files, lists of stages as Python writes them, and LiBai's default
// block.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oslo_cpp/config/config.h"
#include "oslo_cpp/config/list_expression.h"
#include "tests/config_test/config_errors.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo::config_test {
namespace {

using test::TemporaryDirectory;
using test::write_contents;

/// Files of a folder, by their names.
std::string write(const TemporaryDirectory& folder, const std::string& name,
                  const std::string& text) {
  const std::filesystem::path path = folder / name;
  std::filesystem::create_directories(path.parent_path());
  write_contents(path, text);
  return path.string();
}

TEST(ConfigBase, IsReadBesideTheFileAndTheFileWins) {
  const TemporaryDirectory folder;
  write(folder, "common/train.json",
        R"({"train": {"dist": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2,
                               "pipeline_num_layers": 4, "custom_pipeline_stage_id": [0, 0, 0, 1]},
                      "amp": {"enabled": true}},
            "rank_order": "dp-pp-tp", "plan": {"h.*.a": "row", "h.*.b": "column"}})");
  const Config config = Config::from_file(write(folder, "bert.json",
                                                R"({"base": "common/train.json",
                "train": {"dist": {"tensor_parallel_size": 4, "pipeline_num_layers": 3,
                                   "custom_pipeline_stage_id": [0, 0, 1]}},
                "plan": {"h.*.c": "replicate", "h.*.a": "column"}})"));
  EXPECT_EQ(config.values().tensor_parallel_size, 4);
  EXPECT_EQ(config.values().pipeline_parallel_size, 2);
  EXPECT_EQ(config.values().custom_pipeline_stage_id, (std::vector<int>{0, 0, 1}));
  EXPECT_TRUE(config.values().amp);
  EXPECT_EQ(config.values().rank_order, RankOrder::dp_pp_tp);
  const std::vector<std::pair<std::string, std::string>> plan = {
      {"h.*.a", "column"}, {"h.*.b", "column"}, {"h.*.c", "replicate"}};
  EXPECT_EQ(config.values().plan, plan);
  EXPECT_FALSE(config.to_json().contains("base"));
  EXPECT_EQ(Config::parse(config.to_string()).to_string(), config.to_string());
}

TEST(ConfigBase, OfSeveralTheLaterWinsAndNullTakesBack) {
  const TemporaryDirectory folder;
  write(folder, "a.json",
        R"({"train": {"dist": {"data_parallel_size": 4, "tensor_parallel_size": 2}}})");
  write(folder, "b.json", R"({"train": {"dist": {"tensor_parallel_size": 8}}, "strict": true})");
  const Config config = Config::from_file(write(folder, "c.json", R"({"base": ["a.json", "b.json"],
                                        "train": {"dist": {"data_parallel_size": null}}})"));
  EXPECT_EQ(config.values().tensor_parallel_size, 8);
  EXPECT_EQ(config.values().data_parallel_size, std::nullopt);
  EXPECT_TRUE(config.values().strict);
  EXPECT_EQ(config.resolve(8).data, 1);
}

TEST(ConfigBase, MistakesNameTheirFile) {
  const TemporaryDirectory folder;
  const auto error = [&](const std::string& file) {
    return error_of([&] { Config::from_file((folder / file).string()); });
  };
  write(folder, "a.json", R"({"base": "sub/b.json"})");
  write(folder, "sub/b.json", R"({"base": "../a.json"})");
  expect_contains(error("a.json"),
                  {"go in a circle", "a.json -> ", "b.json -> ", "take \"base\" out"});
  write(folder, "self.json", R"({"base": "./self.json"})");
  expect_contains(error("self.json"), {"go in a circle"});
  write(folder, "wrong.json", R"({"trian": {}})");
  write(folder, "of_wrong.json", R"({"base": "wrong.json"})");
  expect_contains(error("of_wrong.json"), {"wrong.json'", "unknown key 'trian'", "'train'"});
  write(folder, "of_none.json", R"({"base": ["none.json"]})");
  expect_contains(error("of_none.json"), {"none.json' cannot be opened"});
  for (const char* base : {"7", "[1]", "\"\"", "{}"}) {
    write(folder, "type.json", std::string(R"({"base": )") + base + "}");
    expect_contains(error("type.json"), {"'base': expected the path of a file"});
  }
  write(folder, "colossal.json", R"({"parallel": {"pipeline": 2}})");
  write(folder, "two.json", R"({"base": "colossal.json", "train": {}})");
  expect_contains(error("two.json"), {"two.json'", "two dialects in one config"});
  expect_contains(parse_error(R"({"base": "a.json"})"),
                  {"'base' names files", "Config::from_file"});
  Config config;
  expect_contains(error_of([&] { config.set("base=a.json"); }), {"unknown key 'base'"});
}

/// Files that double at every level are too many before they are too long.
TEST(ConfigBase, TooManyFilesAreRefused) {
  const TemporaryDirectory folder;
  write(folder, "0.json", "{}");
  for (int i = 1; i < 12; ++i) {
    const std::string below = "\"" + std::to_string(i - 1) + ".json\"";
    write(folder, std::to_string(i) + ".json", "{\"base\": [" + below + ", " + below + "]}");
  }
  expect_contains(error_of([&] { Config::from_file((folder / "11.json").string()); }),
                  {"more than 256 files"});
  EXPECT_NO_THROW(Config::from_file((folder / "6.json").string()));
}

TEST(ListExpression, IsPythons) {
  using List = std::vector<int>;
  const List libais = read_list("[0]*6 + [1]*7 + [2]*7 + [3]*4");
  EXPECT_EQ(libais, (List{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3}));
  EXPECT_EQ(read_list("[0, 1,2, ]"), (List{0, 1, 2}));
  EXPECT_EQ(read_list(" 2*([0]+[1]*2) "), (List{0, 1, 1, 0, 1, 1}));
  EXPECT_EQ(read_list("[7]*(1+1)*2"), (List{7, 7, 7, 7}));
  EXPECT_EQ(read_list("[]"), List());
  EXPECT_EQ(read_list("[1]*0"), List());
  for (const char* wrong : {"", "[", "[0", "[0]*", "[0]+", "3", "2*3", "[0]*[1]", "[0]+1", "[a]",
                            "[-1]", "[0]]", "(([0])", "[0] [1]", "[0.5]", "__import__('os')",
                            "[0]*70000", "[0]*1000000*1000000", "[9999999999999999999]"}) {
    EXPECT_THROW(read_list(wrong), ConfigError) << wrong;
  }
  EXPECT_THROW(read_list(std::string(100, '(') + "[0]"), ConfigError);
  const std::string nul("[0]\0", 4);
  EXPECT_THROW(read_list(nul), ConfigError);
}

TEST(ListExpression, StandsForStagesInFilesAndOverrides) {
  const std::vector<int> libais = read_list("[0]*6 + [1]*7 + [2]*7 + [3]*4");
  const Config written = Config::parse(
      R"({"train": {"dist": {"pipeline_parallel_size": 4, "pipeline_num_layers": 24,
          "custom_pipeline_stage_id": "[0]*6 + [1]*7 + [2]*7 + [3]*4"}}})");
  EXPECT_EQ(written.values().custom_pipeline_stage_id, libais);
  EXPECT_EQ(written.resolve(8).data, 2);
  Config config;
  config.set("train.dist.pipeline_parallel_size=4");
  config.set("train.dist.custom_pipeline_stage_id=[0]*6 + [1]*7 + [2]*7 + [3]*4");
  EXPECT_EQ(config.values().custom_pipeline_stage_id, libais);
  EXPECT_EQ(config.to_json()["train"]["dist"]["custom_pipeline_stage_id"], nlohmann::json(libais));
  expect_contains(
      error_of([&] { config.set("train.dist.custom_pipeline_stage_id=[0]*6 + [1]*"); }),
      {"'train.dist.custom_pipeline_stage_id' = '[0]*6 + [1]*'", "character 13", "seen the end"});
  EXPECT_EQ(config.values().custom_pipeline_stage_id, libais);
}

/// As LiBai's documents show the block: what nobody chose is data parallelism over all ranks.
TEST(LiBaisDefaults, AreDataParallelism) {
  constexpr const char* kBlock = R"({"train": {"dist": {
      "data_parallel_size": 1, "tensor_parallel_size": 1, "pipeline_parallel_size": 1,
      "pipeline_num_layers": null, "custom_pipeline_stage_id": null}}})";
  EXPECT_EQ(Config::parse(kBlock).resolve(8).data, 8);
  EXPECT_EQ(Config::parse(kBlock).resolve(1).data, 1);
  EXPECT_EQ(Config::from_json(nlohmann::json::parse(kBlock)).resolve(8).data, 8);
  Config config = Config::parse(kBlock);
  config.set("train.dist.tensor_parallel_size=2");
  EXPECT_EQ(config.resolve(8).data, 4);
  const TemporaryDirectory folder;
  write(folder, "train.json", kBlock);
  const Config child =
      Config::from_file(write(folder, "bert.json", R"({"base": "train.json", "train": {"dist": {
                "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "pipeline_num_layers": 4}}})"));
  EXPECT_EQ(child.resolve(8).data, 2);
}

/// A size that is asked for must fit, 1 too.
TEST(LiBaisDefaults, AWishIsNone) {
  expect_contains(resolve_error(R"({"train": {"dist": {"data_parallel_size": 1}}})", 8),
                  {"'train.dist.data_parallel_size' 1", "the world size is 8"});
  expect_contains(resolve_error(R"({"train": {"dist": {"data_parallel_size": 1,
                      "tensor_parallel_size": 2, "pipeline_parallel_size": 1}}})",
                                8),
                  {"'train.dist.data_parallel_size' 1", "the world size is 8"});
  Config config = Config::parse(R"({"train": {"dist": {"data_parallel_size": 1,
      "tensor_parallel_size": 1, "pipeline_parallel_size": 1}}})");
  config.set("train.dist.data_parallel_size=1");
  expect_contains(error_of([&] { config.resolve(8); }), {"'train.dist.data_parallel_size' 1"});
}

}  // namespace
}  // namespace oslo::config_test
