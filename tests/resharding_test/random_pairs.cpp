// Random layouts, one saved and another loaded: parameters and the optimizer's states, bit for bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "tests/resharding_test/known_states.h"
#include "tests/resharding_test/resharding_layouts.h"
#include "tests/support/temporary_directory.h"

namespace oslo::resharding_test {
namespace {

constexpr int kMostRanks = 8;

/// Sizes of the config, or a plan that says of each kind of layer how each of two axes cuts it.
GridCase random_grid(std::mt19937& dice) {
  const auto below = [&](int bound) { return static_cast<int>(dice() % bound); };
  if (below(2) == 0) {
    while (true) {
      const int tensor = 1 + below(5), pipeline = 1 + below(2), data = 1 + below(3);
      if (tensor * pipeline * data > kMostRanks) continue;
      return {c10::str("tensor ", tensor, " x pipeline ", pipeline, " x data ", data), tensor,
              pipeline, data};
    }
  }
  GridCase grid;
  grid.axes = {{"row", 2 + below(2)}, {"column", 2}};
  const auto style = [&](std::vector<std::string> styles) {
    std::string text;
    for (const Axis& axis : grid.axes) {
      const std::string& chosen = styles[dice() % styles.size()];
      if (!chosen.empty()) text += (text.empty() ? "" : "; ") + axis.name + ": " + chosen;
    }
    return text;
  };
  grid.plan = nlohmann::json::object();
  for (const char* layer : {"transformer.h.*.mlp.c_fc", "transformer.h.*.mlp.c_proj",
                            "transformer.h.*.attn.c_proj", "transformer.h.0.mlp.c_fc"}) {
    const std::string text = style({"", "row", "column"});
    if (!text.empty()) grid.plan[layer] = text;
  }
  const std::string table = style({"", "vocab"});
  if (!table.empty()) grid.plan["transformer.wte"] = table;
  grid.name = c10::str(factors(grid.axes), " with ", grid.plan.dump());
  return grid;
}

SaveOptions random_options(std::mt19937& dice) {
  return SaveOptions()
      .merge_checkpoints(dice() % 2 == 0)
      .format(dice() % 2 == 0 ? "bin" : "safetensors")
      .random_states(false);
}

/// OSLO_TEST_LAYOUTS says how many.
int pairs() {
  constexpr int kFew = 6;
  const char* asked = std::getenv("OSLO_TEST_LAYOUTS");
  return asked == nullptr ? kFew : std::atoi(asked);
}

TEST(Resharding, RandomPairsOfLayouts) {
  const test::TemporaryDirectory folder;
  for (const Kind kind : kKinds) save_known(kind, folder / std::to_string(static_cast<int>(kind)));
  const Known known[] = {Known(kKinds[0]), Known(kKinds[1])};
  for (int seed = 0; seed < pairs() && !testing::Test::HasFailure(); ++seed) {
    std::mt19937 dice(seed);
    const GridCase saved = random_grid(dice), loaded = random_grid(dice);
    const Kind kind = kKinds[dice() % 2];
    const Known& expected = known[static_cast<int>(kind)];
    const SaveOptions options = random_options(dice);
    SCOPED_TRACE(c10::str("seed ", seed, ": ", saved.name, " into ", loaded.name));
    const test::TemporaryDirectory made;
    on_grid(saved, 1, [&](ParallelModel& parallel, Gpt2& model) {
      const auto optimizer = make_optimizer(kind, model);
      parallel.from_parallelized(folder / std::to_string(static_cast<int>(kind)),
                                 with_states(*optimizer));
      SaveOptions own = options;
      parallel.save_parallelized(made / "saved", own.optimizer(optimizer.get()));
    });
    on_grid(loaded, 2, [&](ParallelModel& parallel, Gpt2& model) {
      const auto optimizer = make_optimizer(kind, model, 0.3);
      parallel.from_parallelized(made / "saved", with_states(*optimizer));
      expect_values(model, expected.model);
      expect_states(*optimizer, model, expected);
    });
  }
}

}  // namespace
}  // namespace oslo::resharding_test
