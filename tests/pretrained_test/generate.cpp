// Decoders with a cache say what they say without one, whole and cut.
#include <gtest/gtest.h>

#include "tests/pretrained_test/layouts.h"
#include "tests/support/temporary_directory.h"

namespace oslo::pretrained_test {
namespace {

std::vector<Family> decoders() {
  std::vector<Family> found;
  for (const Family& family : families()) {
    if (family.generate) found.push_back(family);
  }
  return found;
}

/// A model whose texts do not fall into one token: weights far from each other.
ModulePtr lively(const Family& family) {
  const ModulePtr model = family.make(family.config);
  test::make_seeded(3, [&] {
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& each : ModelView(model).in_use()) {
      each.tensor.normal_(each.tensor.dim() > 1 ? 0.0 : 0.5, 0.3);
    }
    return 0;
  });
  return model;
}

/// One token after the other, each from a forward of all before it.
torch::Tensor without_cache(const Family& family, torch::nn::Module& model, StateDict inputs,
                            int64_t count) {
  const torch::NoGradGuard no_grad;
  const std::string grows = family.name.starts_with("t5") ? "decoder_input_ids" : "input_ids";
  torch::Tensor ids = inputs.at("input_ids");
  if (grows == "decoder_input_ids") ids = torch::zeros({ids.size(0), 1}, torch::kLong);
  for (int64_t i = 0; i < count; ++i) {
    StateDict now;
    for (const auto& [name, tensor] : inputs) now.insert(name, name == grows ? ids : tensor);
    const torch::Tensor next = family.forward(model, now).select(1, -1).argmax(-1, true);
    ids = torch::cat({ids, next}, 1);
  }
  return ids;
}

TEST(Generate, TheCacheChangesNoToken) {
  for (const Family& family : decoders()) {
    const ModulePtr model = lively(family);
    model->to(torch::kDouble);
    const StateDict inputs = some_inputs(family.name);
    const torch::Tensor text = family.generate(*model, inputs, 8);
    EXPECT_TRUE(torch::equal(text, without_cache(family, *model, inputs, 8))) << family.name;
    EXPECT_GT(std::get<0>(at::_unique(text)).numel(), 3) << family.name << " says one thing only";
  }
}

TEST(Generate, ACutModelSaysTheSame) {
  for (const Family& family : decoders()) {
    const ModulePtr plain = lively(family);
    plain->to(torch::kDouble);
    const StateDict inputs = some_inputs(family.name);
    const torch::Tensor expected = family.generate(*plain, inputs, 8);
    const test::TemporaryDirectory folder;
    save_pretrained(plain, folder / "model", PretrainedOptions().config(family.config));
    for (const int tensor : {2, 3}) {
      on_layout(
          {tensor, 1}, family, family.config, inputs,
          [&](const ParallelModel& parallel, const ModulePtr& model) {
            load_pretrained(parallel, folder / "model");
            EXPECT_TRUE(torch::equal(family.generate(*model, inputs, 8), expected))
                << family.name << " at tensor " << tensor;
          },
          torch::kDouble);
    }
  }
}

/// A loss that a step asks for.
torch::Tensor sum_of_logits(const Family& family, torch::nn::Module& model,
                            const torch::Tensor& text) {
  return family.forward(model, StateDict{{"input_ids", text}}).sum();
}

/// The loop reads each token as a number, which the stages of a schedule's step tell each other.
TEST(Generate, APipelineSaysTheSameInAStep) {
  const Family family = gpt2_family();
  const ModulePtr plain = lively(family);
  plain->to(torch::kDouble);
  const StateDict inputs = some_inputs(family.name);
  const torch::Tensor expected = family.generate(*plain, inputs, 8);
  const test::TemporaryDirectory folder;
  save_pretrained(plain, folder / "model", PretrainedOptions().config(family.config));
  on_layout(
      {2, 2}, family, family.config, inputs,
      [&](const ParallelModel& parallel, const ModulePtr& model) {
        load_pretrained(parallel, folder / "model");
        PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(1));
        torch::Tensor text;
        schedule.forward_backward_step(
            {inputs.at("input_ids")},
            [&](const std::vector<torch::Tensor>& micro) {
              text = family.generate(*model, StateDict{{"input_ids", micro[0]}}, 8);
              return sum_of_logits(family, *model, text);
            },
            StepOptions().forward_only(true));
        EXPECT_TRUE(torch::equal(text, expected)) << text << "\n" << expected;
      },
      torch::kDouble);
}

TEST(Generate, StopsAtTheEndOfText) {
  using Model = gpt2::GPT2LMHeadModel;
  const Family family = gpt2_family();
  const ModulePtr model = lively(family);
  const torch::Tensor prompt = torch::tensor({{1, 2}, {3, 4}});
  auto how = greedy();
  const torch::Tensor free = as<Model>(*model).generate(prompt, 6, how);
  how.end_of_text = free[0][2].item<int64_t>();
  const torch::Tensor ended = as<Model>(*model).generate(prompt, 6, how);
  // Each row as before up to its first end, and filled up with it.
  for (int64_t row = 0; row < 2; ++row) {
    bool over = false;
    for (int64_t i = 2; i < ended.size(1); ++i) {
      const int64_t expected = over ? *how.end_of_text : free[row][i].item<int64_t>();
      EXPECT_EQ(ended[row][i].item<int64_t>(), expected) << row << " " << i;
      over = over || expected == *how.end_of_text;
    }
  }
  // Alone, the first row ends the loop.
  EXPECT_EQ(as<Model>(*model).generate(prompt.slice(0, 0, 1), 6, how).size(1), 3);
}

}  // namespace
}  // namespace oslo::pretrained_test
