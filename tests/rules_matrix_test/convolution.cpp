#include <torch/nn.h>

#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/layout/cuts/cut_requests.h"
#include "tests/support/rule_case.h"

namespace rule_case {
namespace {

Function conv2d(int64_t groups = 1) {
  return [groups](const Tensors& x) -> Tensors {
    return {at::conv2d(x[0], x[1], operand_or_none(x, 2), 1, 1, 1, groups)};
  };
}

std::vector<Case> convolution_cases() {
  const auto x = [](std::vector<Placement> how = {}) { return random({5, 4, 6, 5}, how); };
  const auto w = [](std::vector<Placement> how = {}) { return random({7, 4, 3, 3}, how); };
  const auto b = [](std::vector<Placement> how = {}) { return random({7}, how); };
  return {
      {"batch: copies of weight and bias", {x({cut(0)}), w(), b()}, conv2d(), 0, 2},
      {"batch without bias", {x({cut(0)}), w()}, conv2d(), 0, 1},
      {"a batch of one, empty ranks", {random({1, 4, 6, 5}, {cut(0)}), w(), b()}, conv2d(), 0, 2},
      {"output channels", {x(), w({cut(0)}), b({cut(0)})}, conv2d(), 0, 1},
      {"output channels, a whole bias", {x(), w({cut(0)}), b()}, conv2d(), 0, 1},
      {"output channels in blocks", {x(), random({12, 4, 3, 3}, {cut(0, 2)})}, conv2d(), 0, 1},
      {"one output channel, empty ranks",
       {x(), random({1, 4, 3, 3}, {cut(0)}), random({1}, {cut(0)})},
       conv2d(),
       0,
       1},
      {"input channels: one sum, one bias", {x({cut(1)}), w({cut(1)}), b()}, conv2d(), 0, 1},
      {"input channels, a whole weight", {x({cut(1)}), w(), b()}, conv2d(), 0, 1},
      {"input channels, a cut bias: gathered",
       {x({cut(1)}), w({cut(1)}), b({cut(0)})},
       conv2d(),
       1},
      {"one input channel, empty ranks",
       {random({5, 1, 6, 5}, {cut(1)}), random({7, 1, 3, 3}), b()},
       conv2d(),
       0,
       1},
      {"input channels of x, output channels of the weight: x is gathered",
       {x({cut(1)}), w({cut(0)}), b({cut(0)})},
       conv2d(),
       1},
      {"batch of x, output channels of the weight: one is gathered",
       {x({cut(0)}), w({cut(0)}), b()},
       conv2d(),
       1},
      {"field: gathered", {x({cut(2)}), w(), b()}, conv2d(), 1},
      {"kernel: gathered", {x(), w({cut(3)}), b()}, conv2d(), 1},
      {"a bias alone: gathered", {x(), w(), b({cut(0)})}, conv2d(), 1},
      {"an image without batch", {random({4, 6, 5}), w({cut(0)}), b({cut(0)})}, conv2d(), 0, 1},
      {"padding by name",
       {x(), w({cut(0)}), b({cut(0)})},
       [](const Tensors& t) -> Tensors {
         return {at::conv2d(t[0], t[1], t[2], 1, "same", 2),
                 at::conv2d(t[0], t[1], t[2], 2, "valid")};
       },
       0},
      {"one and three dimensions, strides",
       {random({3, 4, 9}, {cut(1)}), random({5, 4, 2}), random({2, 3, 4, 4, 4}),
        random({3, 3, 2, 2, 2}, {cut(0)})},
       [](const Tensors& t) -> Tensors {
         return {at::conv1d(t[0], t[1], {}, 2), at::conv3d(t[2], t[3], {}, 2)};
       },
       0,
       2},
      {"convolution itself",
       {x(), w({cut(0)}), b({cut(0)})},
       [](const Tensors& t) -> Tensors {
         return {at::convolution(t[0], t[1], t[2], {2, 1}, {1, 0}, {1, 2}, false, {0, 0}, 1)};
       },
       0,
       1},
  };
}

std::vector<Case> group_cases() {
  const auto depthwise = conv2d(6);
  return {
      {"whole groups",
       {random({2, 8, 5, 5}, {cut(1, 1, 2)}), random({12, 2, 3, 3}, {cut(0, 1, 3)}),
        random({12}, {cut(0, 1, 3)})},
       conv2d(4),
       0,
       0},
      {"whole groups, a whole weight and bias",
       {random({2, 8, 5, 5}, {cut(1, 1, 2)}), random({12, 2, 3, 3}), random({12})},
       conv2d(4),
       0,
       0},
      {"groups of the weight, too few for all ranks",
       {random({2, 8, 5, 5}), random({12, 4, 3, 3}, {cut(0, 1, 6)}), random({12})},
       conv2d(2),
       0,
       0},
      {"pieces that split groups: gathered",
       {random({2, 10, 5, 5}, {cut(1)}), random({5, 2, 3, 3}), random({5})},
       conv2d(5),
       1},
      {"split groups of x beside a cut weight: x exchanges what has another owner",
       {random({2, 10, 5, 5}, {cut(1)}), random({5, 2, 3, 3}, {cut(0)}), random({5})},
       conv2d(5)},
      {"depthwise",
       {random({2, 6, 5, 5}, {cut(1)}), random({6, 1, 3, 3}, {cut(0)}), random({6}, {cut(0)})},
       depthwise,
       0,
       0},
      {"depthwise with a multiplier, a whole weight",
       {random({2, 6, 5, 5}, {cut(1)}), random({12, 1, 3, 3}), random({12})},
       depthwise,
       0,
       0},
      {"depthwise over a batch",
       {random({5, 6, 5, 5}, {cut(0)}), random({6, 1, 3, 3})},
       depthwise,
       0,
       1},
  };
}

std::vector<Case> transposed_cases() {
  const auto up = [](int64_t groups) {
    return [groups](const Tensors& x) -> Tensors {
      return {at::conv_transpose2d(x[0], x[1], operand_or_none(x, 2), 2, 1, 1, groups)};
    };
  };
  const auto x = [](std::vector<Placement> how = {}) { return random({5, 4, 3, 4}, how); };
  const auto w = [](std::vector<Placement> how = {}) { return random({4, 5, 3, 3}, how); };
  return {
      {"transposed, output channels", {x(), w({cut(1)}), random({5}, {cut(0)})}, up(1), 0, 1},
      {"transposed, input channels", {x({cut(1)}), w({cut(0)}), random({5})}, up(1), 0, 1},
      {"transposed, batch", {x({cut(0)}), w(), random({5})}, up(1), 0, 2},
      {"transposed, empty ranks",
       {x(), random({4, 1, 3, 3}, {cut(1)}), random({1}, {cut(0)})},
       up(1),
       0,
       1},
      {"transposed, whole groups",
       {random({2, 8, 3, 4}, {cut(1, 1, 2)}), random({8, 3, 3, 3}, {cut(0, 1, 2)}), random({12})},
       up(4),
       0,
       0},
      {"transposed, one and three dimensions",
       {random({3, 4, 5}, {cut(1)}), random({4, 2, 3}), random({2, 3, 2, 2, 2}),
        random({3, 3, 2, 2, 2}, {cut(1)})},
       [](const Tensors& t) -> Tensors {
         return {at::conv_transpose1d(t[0], t[1]), at::conv_transpose3d(t[2], t[3], {}, 2)};
       },
       0,
       2},
  };
}

class RulesConvolution : public testing::TestWithParam<int> {};

TEST_P(RulesConvolution, Convolutions) {
  expect({GetParam()}, convolution_cases());
}
TEST_P(RulesConvolution, Groups) {
  expect({GetParam()}, group_cases());
}
TEST_P(RulesConvolution, Transposed) {
  expect({GetParam()}, transposed_cases());
}
INSTANTIATE_TEST_SUITE_P(Ranks, RulesConvolution, testing::Values(2, 3));

TEST(RulesConvolution, TwoAxes) {
  expect({2, 2}, {
                     {"batch and output channels",
                      {random({5, 4, 5, 5}, {cut(0), whole()}),
                       random({7, 4, 3, 3}, {whole(), cut(0)}), random({7}, {whole(), cut(0)})},
                      conv2d(),
                      0,
                      3},
                     {"2D: image and weight are gathered on one axis each",
                      {random({5, 4, 5, 5}, {cut(0), cut(1)}),
                       random({7, 4, 3, 3}, {cut(1), cut(0)}), random({7}, {whole(), cut(0)})},
                      conv2d(),
                      2},
                     {"input channels on both",
                      {random({2, 5, 5, 5}, {cut(1), cut(1)}),
                       random({3, 5, 3, 3}, {cut(1), cut(1)}), random({3})},
                      conv2d(),
                      0,
                      2},
                     {"groups on both",
                      {random({2, 8, 5, 5}, {cut(1, 1, 2), cut(1, 1, 2)}),
                       random({12, 2, 3, 3}, {cut(0, 1, 3), cut(0, 1, 3)}), random({12})},
                      conv2d(4),
                      0,
                      0},
                 });
}

torch::nn::Sequential image_classifier() {
  using torch::nn::Conv2dOptions;
  return torch::nn::Sequential(
      torch::nn::Conv2d(Conv2dOptions(3, 8, 3).padding(1).padding_mode(torch::kCircular)),
      torch::nn::BatchNorm2d(8), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
      torch::nn::Conv2d(Conv2dOptions(8, 8, 3).padding(torch::kSame).groups(8)),
      torch::nn::GroupNorm(4, 8), torch::nn::Conv2d(Conv2dOptions(8, 5, 1)),
      torch::nn::AdaptiveAvgPool2d(1), torch::nn::Flatten(), torch::nn::Linear(5, 3));
}

/// What LibTorch's own layers call, on marked weights: column, depthwise and row convolutions.
TEST(RulesConvolution, AnUntouchedModel) {
  torch::nn::Sequential single = image_classifier();
  single->to(torch::kDouble);
  std::vector<torch::nn::Sequential> copies;
  for (int rank = 0; rank < 3; ++rank) {
    copies.emplace_back(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(single->clone()));
  }
  const at::Tensor images = at::randn({4, 3, 6, 6}, at::kDouble);
  std::vector<at::Tensor> expected;
  for (int step = 0; step < 2; ++step) {
    expected.push_back(single->forward(images).detach());
    single->forward(images).square().sum().backward();
  }
  on_ranks({3}, [&](const oslo::MeshPtr& mesh) {
    torch::nn::Sequential& model = copies[mesh->axis(0)->rank()];
    const auto mark = [&](const std::string& name, oslo::Placement how) {
      const at::Tensor parameter = model->named_parameters()[name];
      oslo::mark_parameter(
          parameter,
          std::make_shared<const oslo::Layout>(oslo::make_layout(mesh, {how}, parameter.sizes())),
          name);
    };
    for (const char* name : {"0.weight", "0.bias", "4.weight"}) mark(name, cut(0, 1, 2));
    mark("6.weight", cut(1, 1, 2));
    for (int step = 0; step < 2; ++step) {
      expect_equal(oslo::full_tensor(model->forward(images)).detach(), expected[step], "output");
      model->forward(images).square().sum().backward();
    }
    EXPECT_EQ(context_of(mesh)->gathers().calls(), 0) << text_of(context_of(mesh)->gathers());
    const auto parameters = model->named_parameters();
    for (const auto& item : single->named_parameters()) {
      expect_equal(oslo::full_tensor(parameters[item.key()].grad()), item.value().grad(),
                   item.key());
    }
    const auto buffers = model->named_buffers();
    for (const auto& item : single->named_buffers()) {
      expect_equal(buffers[item.key()], item.value(), item.key());
    }
  });
}

/// Pieces that split groups, or pixels, ask the parameter behind them for whole ones.
TEST(RulesConvolution, SplitGroupsAskForWholeOnes) {
  on_ranks({2}, [](const oslo::MeshPtr& mesh) {
    const auto origin = std::make_shared<oslo::CutOrigin>();
    origin->parameter = "expand";
    origin->planning = true;
    oslo::Layout layout(mesh);
    layout[0] = {0, std::make_shared<const oslo::Cut>(oslo::Cut::Runs{{1, {10, 10}}}, origin)};
    const at::Tensor expand = at::ones({20, 3, 1, 1});
    oslo::mark_parameter(expand, std::make_shared<const oslo::Layout>(layout), "expand");
    const at::Tensor hidden = at::conv2d(at::ones({2, 3, 4, 4}), expand);
    EXPECT_EQ(at::conv2d(hidden, at::ones({5, 4, 3, 3}), {}, 1, 1, 1, 5).size(1), 5);
    EXPECT_EQ(context_of(mesh)->gathers().calls(), 1) << text_of(context_of(mesh)->gathers());
    EXPECT_EQ(origin->wanted_unit, 4);
    EXPECT_EQ(at::pixel_shuffle(hidden, 2).size(1), 5);
    EXPECT_EQ(context_of(mesh)->gathers().calls(), 2) << text_of(context_of(mesh)->gathers());
    EXPECT_EQ(origin->wanted_unit, 4);
    at::channel_shuffle(hidden, 10);
    EXPECT_EQ(context_of(mesh)->gathers().calls(), 2) << text_of(context_of(mesh)->gathers());
  });
}

/// A training run, which nobody plans, tells nobody; and what many shapes ask for has no common
/// multiple that a dimension could be.
TEST(RulesConvolution, WishesAreThoseOfAPlanAndDoNotOverflow) {
  const auto cut_of = [](const std::shared_ptr<oslo::CutOrigin>& origin) {
    return oslo::Cut(oslo::Cut::Runs{{1, {10, 10}}}, origin);
  };
  const auto heard = std::make_shared<oslo::CutOrigin>();
  heard->planning = true;
  const auto unheard = std::make_shared<oslo::CutOrigin>();
  for (const int64_t prime : {3, 7, 1009, 10007, 100003, 1000003, 1000033, 1000037}) {
    oslo::wish_unit(cut_of(heard), prime);
    oslo::wish_same_pieces(cut_of(heard), oslo::Cut(oslo::Cut::Runs{{1, {prime, prime}}}), prime);
    oslo::wish_unit(cut_of(unheard), prime);
    oslo::wish_blocks(cut_of(unheard), prime);
    EXPECT_GT(heard->wanted_unit, 0);
    EXPECT_EQ(heard->wanted_unit % 3, 0);
  }
  EXPECT_LT(heard->wanted_unit, int64_t{1} << 41);
  EXPECT_EQ(unheard->wanted_unit, 1);
  EXPECT_EQ(unheard->wanted_blocks, 1);
}

/// What does not fit gives the error of one device, on every rank.
TEST(RulesConvolution, ShapesThatDoNotFit) {
  on_ranks({2}, [](const oslo::MeshPtr& mesh) {
    const at::Tensor x = oslo::distribute(at::ones({2, 4, 5, 5}), mesh, {cut(1)});
    EXPECT_THROW(at::conv2d(x, at::ones({3, 5, 3, 3})), c10::Error);
    EXPECT_THROW(at::conv2d(x, at::ones({3, 4, 3, 3}), at::ones({4})), c10::Error);
    EXPECT_THROW(at::group_norm(x, 3), c10::Error);
    EXPECT_THROW(at::pixel_shuffle(x, 3), c10::Error);
    EXPECT_THROW(at::batch_norm(x, at::ones({3}), {}, {}, {}, true, 0.1, 1e-5, false), c10::Error);
    EXPECT_THROW(at::max_pool2d(oslo::distribute(at::ones({4, 2}), mesh, {cut(0)}), 2), c10::Error);
  });
}

}  // namespace
}  // namespace rule_case
