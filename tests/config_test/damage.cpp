// Configs that no editor wrote: each is read, or refused with an oslo::Error.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/config_test/config_errors.h"
#include "tests/support/damage.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo::config_test {
namespace {

const std::vector<std::string>& good_configs() {
  static const std::vector<std::string> configs = {
      R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2},
          "plan": {"h.*.attn.c_attn": "column", "wte": "vocab", "lm_head": "replicate"}})",
      R"({"train": {"dist": {"data_parallel_size": 2, "tensor_parallel_size": 2,
                             "pipeline_parallel_size": 1, "pipeline_num_layers": 3,
                             "custom_pipeline_stage_id": [0, 0, 0]},
                    "num_accumulation_steps": 1, "activation_checkpoint": {"enabled": false},
                    "zero_optimization": {"enabled": false, "stage": 1},
                    "amp": {"enabled": false}}, "rank_order": "dp-pp-tp"})",
      R"({"parallel": {"data": {"size": 2}, "pipeline": null,
                       "tensor": {"size": 4, "mode": "2.5d", "kwargs": {"depth": 1}}}})",
      R"({"backend": "gloo", /* all */ "plan": {"*.fc": "row"} // over columns
         })"};
  return configs;
}

const std::vector<std::string>& good_overrides() {
  static const std::vector<std::string> overrides = {"model_parallelism.tensor_parallel_size=4",
                                                     "train.amp.enabled=true",
                                                     "train.dist.custom_pipeline_stage_id=[0, 1]",
                                                     "parallel.tensor.mode=1d",
                                                     "plan.h.*.mlp.c_proj=row",
                                                     "rank_order=pp-dp-tp"};
  return overrides;
}

/// A reader answers with a result or an `Error` whose text can be read.
template <typename Call>
bool answers(Call&& call) {
  try {
    call();
    return true;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_FALSE(message.empty());
    EXPECT_LT(message.size(), 2000u) << message;
    // A text that others cannot print would be no message.
    EXPECT_NO_THROW(nlohmann::json(message).dump());
    return false;
  }
}

/// A config that was accepted can be printed and read again, and fits a world or says why not.
void use(const Config& config) {
  const std::string text = config.to_string();
  EXPECT_EQ(Config::parse(text).to_string(), text);
  EXPECT_EQ(Config::from_json(config.to_json()).to_json(), config.to_json());
  for (const int size : {1, 2, 8}) answers([&] { config.resolve(size); });
}

TEST(ConfigDamage, IsReadOrRefused) {
  const test::TemporaryDirectory folder;
  int accepted = 0;
  const int count = test::damage_count(400);
  for (int seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(seed);
    test::Dice dice(seed);
    const std::string text =
        test::damaged(dice.one_of(good_configs()), dice, test::hostile_words());
    const bool read = answers([&] { use(Config::parse(text)); });
    accepted += read;
    const std::string path = folder / "config.json";
    test::write_contents(path, text);
    EXPECT_EQ(answers([&] { Config::from_file(path); }), read);
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false,
                                            /*ignore_comments=*/true);
    // nlohmann's parser keeps the last of two equal keys.
    if (!json.is_discarded() && answers([&] { use(Config::from_json(json)); })) {
      answers([&] { Config::parse(text); });
    }

    Config config = Config::parse(good_configs()[seed % good_configs().size()]);
    const std::string before = config.to_string();
    const std::string override_text =
        test::damaged(dice.one_of(good_overrides()), dice, test::hostile_words());
    if (answers([&] { config.set(override_text); })) {
      answers([&] { use(config); });
    } else {
      EXPECT_EQ(config.to_string(), before);
    }
  }
  // Damage that nobody could tell from a wish: the generator does not only break.
  EXPECT_GT(accepted, count / 50);
  EXPECT_LT(accepted, count / 2);
}

TEST(ConfigDamage, NumbersBeyondADouble) {
  expect_contains(parse_error("{\"train\": 1e400}"), {"1e400", "beyond"});
  Config config;
  expect_contains(error_of([&] { config.set("train.amp.enabled=1e400"); }),
                  {"train.amp.enabled=1e400", "beyond"});
}

TEST(ConfigDamage, NestedDeeperThanAnyConfig) {
  nlohmann::json deep;
  for (int i = 0; i < 65'000; ++i) deep = nlohmann::json::array({std::move(deep)});
  expect_contains(error_of([&] { Config::from_json(deep); }), {"nested deeper"});
  nlohmann::json under = nlohmann::json::object();
  under["train"] = std::move(deep);  // nlohmann copies by recursion
  expect_contains(error_of([&] { Config::from_json(under); }), {"nested deeper"});
  const std::string text = std::string(65'000, '[') + std::string(65'000, ']');
  expect_contains(parse_error("{\"train\": " + text + "}"), {"nested deeper"});
  Config config;
  expect_contains(error_of([&] { config.set("train=" + text); }), {"nested deeper"});
}

TEST(ConfigDamage, TextThatIsNotUtf8) {
  Config config;
  expect_contains(error_of([&] { config.set("plan.\xff=row"); }), {"UTF-8"});
  expect_contains(error_of([&] { config.set("rank_order=\xff"); }), {"UTF-8"});
  expect_contains(error_of([] { Config::from_json({{"plan", {{"\xff", "row"}}}}); }), {"UTF-8"});
  expect_contains(error_of([] { Config::from_json({{"plan", NAN}}); }), {"not finite"});
  EXPECT_EQ(config.to_string(), "{}");
}

// A message is a C string for whoever prints it.
TEST(ConfigDamage, MessagesDoNotEndAtANul) {
  const std::string nul("\0", 1);
  Config config;
  expect_contains(error_of([&] { config.set("tra" + nul + "in=1"); }), {"tra\\u0000in", "NUL"});
  expect_contains(parse_error("{\"a\\u0000b\": 1}"), {"a\\u0000b", "NUL"});
  expect_contains(parse_error("{\"rank_order\": \"a\\u0000b\"}"), {"a\\u0000b", "pp-dp-tp"});
  expect_contains(parse_error("{}" + nul + "{"), {"NUL"});
  expect_contains(error_of([&] { Config::from_file("absent" + nul + "x"); }), {"NUL"});
}

TEST(ConfigDamage, AnEndlessFile) {
  expect_contains(error_of([] { Config::from_file("/dev/zero"); }), {"/dev/zero", "bytes"});
}

}  // namespace
}  // namespace oslo::config_test
