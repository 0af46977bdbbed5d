// What "sequence_parallel" cannot do is refused by name, with the fix, on every rank.
#include <gmock/gmock.h>

#include "tests/sequence_parallel_test/streams.h"

namespace sequence_parallel {
namespace {

using testing::HasSubstr;

/// The error that all of four ranks throw.
template <typename Make>
std::string refusal(const Make& make, const std::string& text,
                    const std::function<void(decltype(make())&, oslo::InitializeOptions&)>& tell) {
  std::vector<std::string> errors(4);
  oslo::run_as_threads(4, [&](const oslo::World& world) {
    auto model = oslo::test::make_seeded(7, make);
    oslo::InitializeOptions how;
    how.world = world;
    tell(model, how);
    try {
      oslo::initialize(model, oslo::Config::parse(text), how);
    } catch (const oslo::ConfigError& error) {
      errors[world.rank()] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  return errors[0];
}

void show(models::GPT2& model, oslo::InitializeOptions& how) {
  how.example_inputs = [model]() mutable { model->forward(torch::zeros({2, 7}, torch::kLong)); };
}

const auto tiny = [] { return models::GPT2(gpt2_options()); };

TEST(SequenceParallelRefused, WithoutAnExample) {
  EXPECT_THAT(refusal(tiny, config(2), [](auto&, auto&) {}),
              HasSubstr("set InitializeOptions::example_inputs"));
}

TEST(SequenceParallelRefused, WithAnExampleThatCannotRunOnShapes) {
  const std::string error = refusal(tiny, config(2), [](auto& model, auto& how) {
    how.example_inputs = [model]() mutable {
      const Tensor y = model->forward(torch::zeros({2, 7}, torch::kLong));
      std::ignore = *oslo::local_tensor(y).template const_data_ptr<float>();
    };
  });
  EXPECT_THAT(error, HasSubstr("example_inputs could not be run on shapes"));
  EXPECT_THAT(error, HasSubstr("row scatter=-2"));
}

TEST(SequenceParallelRefused, WithoutATensorAxis) {
  const std::string error = refusal(tiny, config(1), [](auto& model, auto& how) {
    how.axes = {{"row", 2}, {"column", 2}};
    show(model, how);
  });
  EXPECT_THAT(error, HasSubstr("needs a tensor axis"));
  EXPECT_THAT(error, HasSubstr("name one \"tensor\""));
}

TEST(SequenceParallelRefused, WhereNoLayerHasASequence) {
  const std::string error =
      refusal([] { return torch::nn::Linear(8, 12); }, config(2),
              [](auto& model, auto& how) {
                how.example_inputs = [model]() mutable { model->forward(torch::zeros({5, 8})); };
              });
  EXPECT_THAT(error, HasSubstr("the plan has no linear layer cut by row, and no embedding"));
  EXPECT_THAT(error, HasSubstr("remove the key"));
}

}  // namespace
}  // namespace sequence_parallel
