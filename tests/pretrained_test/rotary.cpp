// Rotary positions of the tutorial's Llama: the frequencies of published models, and what their
// config.json may say.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/error_of.h"
#include "tutorials/models/llama.h"

namespace oslo::pretrained_test {
namespace {

using nlohmann::json;

/// As published with Llama-3.2-1B and Llama-3.1-8B.
json scaling(double factor) {
  return {{"factor", factor},
          {"high_freq_factor", 4.0},
          {"low_freq_factor", 1.0},
          {"original_max_position_embeddings", 8192},
          {"rope_type", "llama3"}};
}

json config_with(const json& rope_scaling) {
  json config = llama::LlamaConfig().to_json();
  config["rope_theta"] = 500000.0;
  config["rope_scaling"] = rope_scaling;
  config["max_position_embeddings"] = 131072;
  return config;
}

rotary::Rope rope_of(const json& config) {
  return llama::LlamaConfig::from_json(config).rope;
}

/// The formula in double, by hand, of both ends of each band and what is between.
TEST(Rotary, FrequenciesOfPublishedModels) {
  const std::map<int64_t, std::map<int64_t, double>> expected = {{64,
                                                                  {{0, 1.0},
                                                                   {7, 0.056669621},
                                                                   {14, 0.003211446},
                                                                   {15, 0.0012905479},
                                                                   {16, 0.0004295568},
                                                                   {17, 9.7082878e-05},
                                                                   {18, 1.9461638e-05},
                                                                   {31, 9.4183067e-08}}},
                                                                 {128,
                                                                  {{0, 1.0},
                                                                   {28, 0.003211446},
                                                                   {29, 0.0021665708},
                                                                   {30, 0.0013718936},
                                                                   {33, 0.00031269375},
                                                                   {35, 9.5562124e-05},
                                                                   {36, 7.7846553e-05},
                                                                   {63, 3.068926e-07}}}};
  for (const auto& [head_dim, table] : expected) {
    const auto rope = rope_of(config_with(scaling(head_dim == 64 ? 32.0 : 8.0)));
    const torch::Tensor found = rotary::frequencies(rope, head_dim, torch::kCPU);
    ASSERT_EQ(found.numel(), head_dim / 2);
    // A float's rounding, of a power of 5e5 and what is made of it.
    for (const auto& [pair, frequency] : table) {
      EXPECT_NEAR(found[pair].item<double>() / frequency, 1.0, 1e-5) << head_dim << " " << pair;
    }
  }
}

TEST(Rotary, AConfigComesBack) {
  for (const json& each : {json(), scaling(32.0)}) {
    const json config = config_with(each);
    EXPECT_EQ(llama::LlamaConfig::from_json(config).to_json(), config);
    json newer = config;
    newer.erase("rope_scaling");
    newer.erase("rope_theta");
    newer["rope_parameters"] = each.is_null() ? json{{"rope_type", "default"}} : each;
    newer["rope_parameters"]["rope_theta"] = 500000.0;
    EXPECT_EQ(llama::LlamaConfig::from_json(newer).to_json(), config);
  }
  json by_length = scaling(4.0);
  by_length.erase("original_max_position_embeddings");
  EXPECT_EQ(rope_of(config_with(by_length)).scaling->original_max_position_embeddings, 131072);
}

TEST(Rotary, WhatTheModelIsNotWrittenForIsRefused) {
  const auto refused = [](const json& rope_scaling) -> std::string {
    try {
      rope_of(config_with(rope_scaling));
    } catch (const std::runtime_error& error) {  // a model knows no errors of ours
      return error.what();
    }
    return "taken";
  };
  test::expect_contains(refused({{"rope_type", "yarn"}, {"factor", 4.0}}),
                        {"rope_type is \"yarn\"", "\"default\" and \"llama3\""});
  // As the key was called before.
  test::expect_contains(refused({{"type", "linear"}, {"factor", 2.0}}),
                        {"rope_type is \"linear\""});
  json partial = scaling(8.0);
  partial["partial_rotary_factor"] = 0.5;
  test::expect_contains(refused(partial), {"partial_rotary_factor is 0.5"});
  json without = scaling(8.0);
  without.erase("factor");
  test::expect_contains(refused(without), {"factor"});
  json turned = scaling(8.0);
  turned["low_freq_factor"] = 4.0;
  test::expect_contains(refused(turned), {"high_freq_factor 4", "is not above low_freq_factor 4"});
}

}  // namespace
}  // namespace oslo::pretrained_test
