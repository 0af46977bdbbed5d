// What a config says of the types that a model computes in.
#include <map>

#include "tests/config_test/config_errors.h"

namespace oslo::config_test {
namespace {

ConfigValues values_of(const std::string& text) {
  const Config config = Config::parse(text);
  config.resolve(1);
  return config.values();
}

TEST(ConfigPrecision, EachDialectSaysItInItsPlace) {
  const ConfigValues own = values_of(
      R"({"amp": {"enabled": true, "dtype": "float16"}, "master_weights": true,
          "reduce_dtype": "float32", "model_parallelism": {}})");
  EXPECT_TRUE(own.amp && own.master_weights);
  EXPECT_EQ(own.amp_dtype, "float16");
  EXPECT_EQ(own.reduce_dtype, "float32");
  EXPECT_EQ(values_of(R"({"reduce_dtype": "float16"})").reduce_dtype, "float16");
  const ConfigValues libai = values_of(R"({"train": {"amp": {"enabled": true}}})");
  EXPECT_TRUE(libai.amp);
  EXPECT_EQ(libai.amp_dtype, "bfloat16");
  EXPECT_EQ(libai.reduce_dtype, "float32");
  const ConfigValues colossal_ai = values_of(R"({"parallel": {}, "fp16": {"mode": "torch"}})");
  EXPECT_TRUE(colossal_ai.amp);
  EXPECT_EQ(colossal_ai.amp_dtype, "float16");
  EXPECT_FALSE(values_of(R"({"parallel": {}, "fp16": {"enabled": false}})").amp);
  EXPECT_FALSE(values_of(R"({"amp": {"enabled": false}})").amp);
}

TEST(ConfigPrecision, WhatMeansNothingIsRefused) {
  const auto error = [](const std::string& text) {
    return error_of([&] { Config::parse(text).resolve(1); });
  };
  expect_contains(error(R"({"amp": {"dtype": "float16"}})"), {"'amp'", "\"enabled\": true"});
  expect_contains(error(R"({"train": {"amp": {"dtype": "float16"}}})"), {"'train.amp'"});
  expect_contains(error(R"({"amp": {"enabled": true, "dtype": "half"}})"), {"bfloat16, float16"});
  expect_contains(
      error(R"({"parallel": {}, "fp16": {}, "amp": {"enabled": true, "dtype": "bfloat16"}})"),
      {"'amp'", "'fp16'", "keep one"});
  expect_contains(error(R"({"amp": {"enabled": true}, "model_parallelism": {"enable": false}})"),
                  {"'amp.enabled' = true", "'model_parallelism.enable' to true"});
  expect_contains(error(R"({"train": {}, "fp16": {}})"), {"fp16"});
  for (const auto& [key, seen] : std::map<std::string, std::string>{
           {R"("master_weights": true)", "'master_weights' = true"},
           {R"("reduce_dtype": "bfloat16")", "'reduce_dtype' = bfloat16"},
           {R"("activation_checkpoint": {"enabled": true})",
            "'activation_checkpoint.enabled' = true"}}) {
    expect_contains(error("{" + key + R"(, "model_parallelism": {"enable": false}})"),
                    {seen + " beside 'model_parallelism.enable' = false",
                     "'model_parallelism.enable' to true"});
  }
  expect_contains(error(R"({"reduce_dtype": "half"})"), {"float32, bfloat16, float16"});
}

TEST(ConfigPrecision, ColossalAIsScaling) {
  const EngineKeys engine = values_of(R"({"parallel": {}, "fp16": {"mode": "torch",
      "init_scale": 512, "growth_factor": 3, "backoff_factor": 0.25, "growth_interval": 7}})")
                                .engine;
  EXPECT_EQ(engine.init_scale, 512);
  EXPECT_EQ(engine.growth_factor, 3);
  EXPECT_EQ(engine.backoff_factor, 0.25);
  EXPECT_EQ(engine.growth_interval, 7);
  EXPECT_EQ(values_of(R"({"parallel": {}, "fp16": {}})").engine.init_scale, std::nullopt);
  EXPECT_EQ(values_of(R"({"parallel": {}, "fp16": {"enabled": false, "init_scale": 512}})")
                .engine.init_scale,
            std::nullopt);
}

}  // namespace
}  // namespace oslo::config_test
