// What an explanation says to people and programs.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "tests/explain_test/explained.h"
#include "tests/models/gpt2.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"

namespace explain_test {
namespace {

using oslo::Explanation;
using oslo::run_as_threads;
using oslo::World;
using oslo::test::error_of;
using oslo::test::expect_contains;
using oslo::test::in;
using parity::make_seeded;
using testing::HasSubstr;

/// Of a GPT-2 of three layers over two ranks.
const Explanation& of_gpt2() {
  static const Explanation explanation = [] {
    models::GPT2Options options;
    options.layers = 3;
    Explanation found;
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      models::GPT2 model = make_seeded(3, [&] { return models::GPT2(options); });
      oslo::InitializeOptions how = in(world);
      how.example_inputs = [&] { model->forward(torch::zeros({2, 5}, torch::kLong)); };
      auto parallel = oslo::initialize(model, oslo::Config::parse(parity::tensor_parallel(2)), how);
      if (world.rank() == 0) found = parallel.explain();
    });
    return found;
  }();
  return explanation;
}

TEST(ExplainedPage, EqualLayersAreWrittenOnce) {
  const std::string text = of_gpt2().to_string();
  EXPECT_THAT(text, HasSubstr("h.0 to h.2, alike"));
  EXPECT_THAT(text, HasSubstr("h.*.attn.c_attn"));
  EXPECT_THAT(text, testing::Not(HasSubstr("h.1.")));
  EXPECT_THAT(text, HasSubstr("forward: all_reduce over tensor, "));
  EXPECT_THAT(text, HasSubstr("partial sum ends: each rank has added up its part"));
  EXPECT_THAT(text, HasSubstr("backward: all_reduce over tensor, "));
  EXPECT_THAT(text, HasSubstr("gradient of what every rank used for its own part"));
}

TEST(ExplainedPage, JsonHasEveryCall) {
  const auto json = of_gpt2().to_json();
  EXPECT_EQ(json.at("calls").size(), of_gpt2().calls.size());
  int64_t bytes = 0, calls = 0;
  bool cut = false;
  for (const auto& call : json.at("calls")) {
    for (const auto& move : call.at("moved")) bytes += move.at("bytes").get<int64_t>();
    for (const auto& result : call.at("results")) {
      cut |= !result.at("cuts").empty() && result.at("placement") == result.at("gradient");
    }
  }
  EXPECT_TRUE(cut);
  for (const auto& total : json.at("totals")) {
    bytes -= total.at("bytes").get<int64_t>();
    calls += total.at("calls").get<int64_t>();
  }
  EXPECT_EQ(bytes, 0);
  EXPECT_EQ(calls, of_gpt2().total().calls);
}

/// No address but the schema's, every tag closed, nothing of the model's unescaped.
TEST(ExplainedPage, HtmlNeedsNothingElse) {
  Explanation explanation = of_gpt2();
  explanation.calls.front().module = "a<b>&\"c\"";
  const std::string html = explanation.to_html();
  EXPECT_THAT(html, HasSubstr("a&lt;b&gt;&amp;&quot;c&quot;"));
  EXPECT_THAT(html, testing::Not(HasSubstr("http")));
  EXPECT_THAT(html, testing::Not(HasSubstr("src=")));
  std::vector<std::string> open;
  const std::regex tags("<(/?)([a-z0-9]+)[^>]*>");
  for (std::sregex_iterator tag(html.begin(), html.end(), tags), end; tag != end; ++tag) {
    const std::string name = (*tag)[2];
    if (name == "meta" || name == "br" || name == "input") continue;
    if ((*tag)[1].length() == 0) {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << name;
      ASSERT_EQ(open.back(), name);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(Explain, WithoutAnExampleAStepIsRecorded) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    models::GPT2 model = make_seeded(3, [] { return models::GPT2(models::GPT2Options()); });
    auto parallel =
        oslo::initialize(model, oslo::Config::parse(parity::tensor_parallel(2)), in(world));
    expect_contains(error_of([&] { parallel.explain(); }),
                    {"explain", "no example_inputs", "parallel.explain([&] {"});
    const auto tokens = torch::zeros({2, 5}, torch::kLong);
    const Explanation recorded = parallel.explain([&] { model->forward(tokens).sum().backward(); });
    EXPECT_EQ(recorded.rank, world.rank());
    EXPECT_GT(recorded.total().bytes, 0);
    EXPECT_EQ(text_of(book_of(parallel.explain())), text_of(book_of(recorded)));
    EXPECT_THROW(parallel.explain([] { throw std::runtime_error("a step that fails"); }),
                 std::runtime_error);
    // Nobody watches any more.
    model->forward(tokens).sum().backward();
    EXPECT_EQ(text_of(book_of(parallel.explain())), text_of(book_of(recorded)));
  });
}

TEST(Explain, NamesWhatGathers) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential model =
        make_seeded(3, [] { return torch::nn::Sequential(torch::nn::Linear(6, 10)); });
    auto parallel = oslo::initialize(
        model, oslo::Config::parse(R"({"plan": {"0": "column"}, "model_parallelism": {
            "enable": true, "tensor_parallel_size": 2}})"),
        in(world));
    const Explanation recorded = parallel.explain([&] {
      std::get<0>(model->forward(torch::ones({3, 6})).sort(-1)).sum().backward();
    });
    const auto& call =
        *std::ranges::find(recorded.calls, "aten::sort", &oslo::ExplainedCall::operation);
    ASSERT_EQ(call.gathers.size(), 1u);
    ASSERT_EQ(call.moves.size(), 1u);
    EXPECT_EQ(call.moves[0].why, "gathers: " + call.gathers[0]);
    EXPECT_EQ(call.moves[0].collective, "all_gather");
    EXPECT_EQ(call.module, "0");
    EXPECT_FALSE(call.of_module);
    EXPECT_EQ(call.results[0].placement(), "whole");
  });
}

}  // namespace
}  // namespace explain_test
