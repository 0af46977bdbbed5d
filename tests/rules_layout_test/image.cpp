#include "tests/support/rule_case.h"

namespace rule_case {
namespace {

at::Tensor first(const std::tuple<at::Tensor, at::Tensor>& pair) {
  return std::get<0>(pair);
}

Tensors both(const std::tuple<at::Tensor, at::Tensor>& pair) {
  return {std::get<0>(pair), std::get<1>(pair)};
}

Tensors pools(const Tensors& x) {
  return {at::max_pool2d(x[0], 2), at::avg_pool2d(x[0], 2, 1, 1),
          at::adaptive_avg_pool2d(x[0], {2, 3}), first(at::adaptive_max_pool2d(x[0], {3, 2})),
          first(at::max_pool2d_with_indices(x[0], 3, 1, 1))};
}

Tensors resized(const Tensors& x) {
  using Size = at::IntArrayRef;
  return {at::upsample_nearest2d(x[0], {7, 9}),
          at::upsample_bilinear2d(x[0], {3, 9}, true),
          at::upsample_bicubic2d(x[0], Size{7, 3}, false),
          at::_upsample_nearest_exact2d(x[0], {8, 9}),
          at::_upsample_bilinear2d_aa(x[0], {3, 3}, false),
          at::upsample_nearest2d(x[0], at::OptionalIntArrayRef(), at::ArrayRef<double>{2.0, 1.5})};
}

Tensors windows(const Tensors& x) {
  const at::Tensor columns = at::im2col(x[0], {2, 3}, {1, 1}, {1, 0}, {1, 2});
  return {columns, at::col2im(columns, {6, 5}, {2, 3}, {1, 1}, {1, 0}, {1, 2})};
}

std::vector<Case> pooling_cases() {
  const auto x = [](std::vector<Placement> how) { return random({3, 5, 6, 5}, std::move(how)); };
  const auto grid = [](std::vector<Placement> how = {}) {
    return random({3, 4, 2, 2}, std::move(how));
  };
  const auto sample = [](const Tensors& t) -> Tensors {
    return {at::grid_sampler(t[0], t[1], 0, 0, false)};
  };
  const auto line_and_volume = [](const Tensors& t) -> Tensors {
    return {at::max_pool1d(t[0], 2),
            at::avg_pool1d(t[0], 2),
            at::adaptive_avg_pool1d(t[0], 3),
            first(at::adaptive_max_pool1d(t[0], 2)),
            at::upsample_linear1d(t[0], {9}, false),
            at::upsample_nearest1d(t[0], {9}),
            at::max_pool3d(t[1], 2),
            at::avg_pool3d(t[1], 2),
            at::adaptive_avg_pool3d(t[1], {1, 2, 1}),
            first(at::adaptive_max_pool3d(t[1], {1, 2, 1})),
            at::upsample_trilinear3d(t[1], {3, 3, 3}, true),
            at::upsample_nearest3d(t[1], {3, 3, 4})};
  };
  return {
      {"pools, batch", {x({cut(0)})}, pools, 0, 0},
      {"pools, channels", {x({cut(1)})}, pools, 0, 0},
      {"pools, empty ranks", {random({1, 5, 6, 5}, {cut(0)})}, pools, 0, 0},
      {"pools, one channel, empty ranks", {random({3, 1, 6, 5}, {cut(1)})}, pools, 0, 0},
      {"pools without a batch", {random({5, 6, 5}, {cut(0)})}, pools, 0, 0},
      {"pools, field: gathered, each", {x({cut(2)})}, pools, 5},
      {"one and three dimensions",
       {random({3, 5, 6}, {cut(1)}), random({5, 2, 2, 4, 4}, {cut(0)})},
       line_and_volume,
       0,
       0},
      {"one and three dimensions, empty ranks",
       {random({1, 5, 6}, {cut(0)}), random({2, 1, 2, 4, 4}, {cut(1)})},
       line_and_volume,
       0,
       0},
      {"indices and unpooling",
       {x({cut(1)})},
       [](const Tensors& t) -> Tensors {
         const Tensors pooled = both(at::max_pool2d_with_indices(t[0], 2));
         return {pooled[0], pooled[1], at::max_unpool2d(pooled[0], pooled[1], {6, 5})};
       },
       0,
       0},
      {"fractional pooling",
       {x({cut(1)}), {at::rand({3, 5, 2}, at::kDouble), {}}},
       [](const Tensors& t) {
         return both(at::fractional_max_pool2d(t[0], {2, 2}, {3, 2}, t[1].detach()));
       },
       0,
       0},
      {"resized, batch", {x({cut(0)})}, resized, 0, 0},
      {"resized, channels", {x({cut(1)})}, resized, 0, 0},
      {"resized, empty ranks", {random({3, 1, 6, 5}, {cut(1)})}, resized, 0, 0},
      {"resized, field: gathered, each", {x({cut(3)})}, resized, 6},
      {"sampled, batch", {x({cut(0)}), grid()}, sample, 0, 0},
      {"sampled, channels: the grid is copied", {x({cut(1)}), grid()}, sample, 0, 1},
      {"sampled, points: the image is copied", {x({}), grid({cut(1)})}, sample, 0, 1},
      {"sampled, empty ranks", {random({3, 1, 6, 5}, {cut(1)}), grid()}, sample, 0, 1},
      {"sampled, field: gathered", {x({cut(2)}), grid()}, sample, 1},
  };
}

std::vector<Case> image_cases() {
  const auto x = [](std::vector<Placement> how) { return random({3, 5, 6, 5}, std::move(how)); };
  const auto pads = [](const Tensors& t) -> Tensors {
    return {at::constant_pad_nd(t[0], {1, 2, 0, 0, 0, 0}, 0.5),
            at::pad(t[0], {1, 0}),
            at::pad(t[0], {1, 0, 0, 0}, "reflect"),
            at::pad(t[0], {2, 1, 0, 0}, "replicate"),
            at::pad(t[0], {1, 2, 0, 0}, "circular"),
            at::constant_pad_nd(t[0], {-1, 0}, 0)};
  };
  const auto moves = [](const Tensors& t) -> Tensors {
    return {t[0].roll({1, -2}, {2, 3}), t[0].flip({3, -2}),   t[0].rot90(1, {2, 3}),
            t[0].rot90(2, {2, 3}),      t[0].unfold(3, 2, 2), t[0].fliplr().flip({1})};
  };
  const auto shuffle = [](const Tensors& t) -> Tensors { return {at::pixel_shuffle(t[0], 2)}; };
  const auto unshuffle = [](const Tensors& t) -> Tensors { return {at::pixel_unshuffle(t[0], 2)}; };
  const auto mix = [](int64_t groups) {
    return
        [groups](const Tensors& t) -> Tensors { return {at::channel_shuffle(t[0], groups) * 2}; };
  };
  return {
      {"pads, batch", {x({cut(0)})}, pads, 0, 0},
      {"pads, rows", {x({cut(2)})}, pads, 0, 0},
      {"pads, empty ranks", {random({3, 1, 6, 5}, {cut(1)})}, pads, 0, 0},
      {"pads, along the cut: gathered, each", {x({cut(3)})}, pads, 6},
      {"moves, batch", {x({cut(0)})}, moves, 0, 0},
      {"moves, along the cut: windows alone are gathered", {x({cut(3)})}, moves, 1},
      {"moves, one channel, empty ranks", {random({3, 1, 6, 5}, {cut(0)})}, moves, 0, 0},
      {"flip of nothing",
       {x({cut(0)})},
       [](const Tensors& t) -> Tensors { return {t[0].flip({})}; },
       0,
       0},
      {"pixel_shuffle, whole units", {random({2, 12, 3, 2}, {cut(1, 1, 4)})}, shuffle, 0, 0},
      {"pixel_shuffle, blocks", {random({2, 24, 3, 2}, {cut(1, 2, 4)})}, shuffle, 0, 0},
      {"pixel_shuffle, batch", {random({3, 4, 3, 2}, {cut(0)})}, shuffle, 0, 0},
      {"pixel_shuffle, empty ranks", {random({4, 3, 2}, {cut(0, 1, 4)})}, shuffle, 0, 0},
      {"pixel_shuffle, split units: gathered", {random({2, 20, 3, 2}, {cut(1)})}, shuffle, 1},
      {"pixel_shuffle, field: gathered", {random({2, 4, 3, 2}, {cut(2)})}, shuffle, 1},
      {"pixel_unshuffle, channels", {random({2, 5, 4, 6}, {cut(1)})}, unshuffle, 0, 0},
      {"pixel_unshuffle, empty ranks", {random({2, 1, 4, 6}, {cut(1)})}, unshuffle, 0, 0},
      {"channel_shuffle, whole groups", {random({2, 12, 2, 2}, {cut(1, 1, 3)})}, mix(4), 0, 0},
      {"channel_shuffle, groups of blocks", {random({2, 20, 2, 2}, {cut(1, 4)})}, mix(4), 0, 0},
      {"channel_shuffle, two blocks a group", {random({2, 20, 2, 2}, {cut(1, 4)})}, mix(2), 0, 0},
      {"channel_shuffle there and back",
       {random({2, 12, 2}, {cut(1, 1, 3)})},
       [](const Tensors& t) -> Tensors {
         return {at::channel_shuffle(at::channel_shuffle(t[0], 4), 3)};
       },
       0,
       0},
      {"channel_shuffle, fewer groups than ranks",
       {random({2, 6, 2, 2}, {cut(1, 1, 6)})},
       mix(1),
       0,
       0},
      {"channel_shuffle, batch", {random({1, 6, 2, 2}, {cut(0)})}, mix(3), 0, 0},
      {"channel_shuffle, split groups: gathered", {random({2, 10, 2, 2}, {cut(1)})}, mix(5), 1},
      {"im2col and col2im, channels", {x({cut(1)})}, windows, 0, 0},
      {"im2col and col2im, empty ranks", {random({1, 5, 6, 5}, {cut(0)})}, windows, 0, 0},
      {"im2col and col2im without a batch", {random({1, 6, 5}, {cut(0)})}, windows, 0, 0},
      {"im2col, field: gathered", {x({cut(2)})}, windows, 1},
      {"affine grid",
       {random({3, 2, 3}, {cut(0)})},
       [](const Tensors& t) -> Tensors {
         return {at::affine_grid_generator(t[0], {3, 1, 4, 2}, false)};
       },
       0,
       0},
  };
}

/// x, weight, bias, running mean and variance: the latter two are changed, and results, too.
Function normalize(const decltype(&at::batch_norm)& norm, bool from_batch) {
  return [norm, from_batch](const Tensors& x) -> Tensors {
    const at::Tensor mean = x[3].detach().clone(), variance = x[4].detach().abs();
    const at::Tensor y = norm(x[0], x[1], x[2], mean, variance, from_batch, 0.3, 1e-5, false);
    return {y, mean, variance};
  };
}

std::vector<Operand> images_and_channels(at::IntArrayRef sizes, std::vector<Placement> how) {
  std::vector<Operand> operands{random(sizes, how)};
  for (int i = 0; i < 4; ++i) operands.push_back(random({sizes[1]}));
  return operands;
}

std::vector<Case> channel_norm_cases() {
  const Function train = normalize(at::batch_norm, true),
                 evaluate = normalize(at::batch_norm, false);
  const Function per_image = normalize(at::instance_norm, true);
  const auto x = [](std::vector<Placement> how) { return images_and_channels({4, 5, 3, 2}, how); };
  const auto affine_cut = [](std::vector<Operand> operands, size_t until) {
    for (size_t i = 1; i < until; ++i) operands[i].placements = {cut(0)};
    return operands;
  };
  return {
      {"batch norm, channels: no reduction", x({cut(1)}), train, 0, 0},
      {"batch norm, channels, cut weights", affine_cut(x({cut(1)}), 3), train, 0, 0},
      {"batch norm, channels, cut buffers", affine_cut(x({cut(1)}), 5), train, 0, 0},
      {"batch norm, weights alone cut", affine_cut(x({}), 3), train, 0, 0},
      {"batch norm, channels in blocks", images_and_channels({4, 8, 3, 2}, {cut(1, 2)}), train, 0,
       0},
      {"batch norm, one channel, empty ranks", images_and_channels({4, 1, 3, 2}, {cut(1)}), train,
       0, 0},
      {"batch norm, batch: two statistics, two copies, both ways", x({cut(0)}), train, 0, 6},
      {"batch norm, a batch of one", images_and_channels({1, 5, 3, 2}, {cut(0)}), train, 0, 6},
      {"batch norm, field", x({cut(2)}), train, 0, 6},
      {"batch norm, batch, cut buffers", affine_cut(x({cut(0)}), 5), train, 4},
      {"batch norm of rows", images_and_channels({6, 5}, {cut(0)}), train, 0, 6},
      {"batch norm, evaluation, channels", x({cut(1)}), evaluate, 0, 0},
      {"batch norm, evaluation, field", x({cut(2)}), evaluate, 0, 2},
      {"batch norm, evaluation, empty ranks", images_and_channels({1, 5, 3, 2}, {cut(0)}), evaluate,
       0, 2},
      {"batch norm without weights or buffers",
       {random({4, 5, 3, 2}, {cut(1)}), random({4, 5, 3, 2}, {cut(0)})},
       [](const Tensors& t) -> Tensors {
         return {at::batch_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-5, false),
                 at::batch_norm(t[1], {}, {}, {}, {}, true, 0.1, 1e-5, false)};
       },
       0,
       4},
      {"instance norm, channels", x({cut(1)}), per_image, 0, 0},
      {"instance norm, batch: copies, and the buffers move by the mean", x({cut(0)}), per_image, 0,
       3},
      {"instance norm, empty ranks", images_and_channels({1, 5, 3, 2}, {cut(0)}), per_image, 0, 3},
      {"instance norm, field: gathered", x({cut(3)}), per_image, 1},
      {"instance norm, evaluation, field", x({cut(3)}), normalize(at::instance_norm, false), 0, 2},
      {"instance norm without weights or buffers",
       {random({4, 1, 3, 2}, {cut(1)})},
       [](const Tensors& t) -> Tensors {
         return {at::instance_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-5, false)};
       },
       0,
       0},
  };
}

std::vector<Case> group_norm_cases() {
  const auto norm = [](int64_t groups) {
    return [groups](const Tensors& x) -> Tensors {
      return {at::group_norm(x[0], groups, operand_or_none(x, 1), operand_or_none(x, 2))};
    };
  };
  const auto of = [](at::IntArrayRef sizes, std::vector<Placement> how) {
    return std::vector<Operand>{random(sizes, std::move(how)), random({sizes[1]}),
                                random({sizes[1]})};
  };
  const auto root = [](const Tensors& x) -> Tensors {
    return {at::rms_norm(x[0], {5}, x[1]), at::rms_norm(x[0], {5}, {}, 0.1)};
  };
  return {
      {"group norm, whole groups", of({2, 8, 3, 2}, {cut(1, 1, 2)}), norm(4), 0, 0},
      {"group norm, fewer groups than ranks", of({2, 8, 3, 2}, {cut(1, 1, 8)}), norm(1), 0, 0},
      {"group norm, batch", of({3, 4, 3, 2}, {cut(0)}), norm(2), 0, 2},
      {"group norm, a batch of one", of({1, 4, 3, 2}, {cut(0)}), norm(2), 0, 2},
      {"group norm, split groups: two statistics, both ways", of({2, 10, 3}, {cut(1)}), norm(5), 0,
       4},
      {"group norm, blocks", of({2, 8, 3}, {cut(1, 2)}), norm(1), 0, 4},
      {"group norm, split groups without a field, empty ranks", of({2, 2}, {cut(1)}), norm(1), 0,
       4},
      {"group norm, field", of({2, 4, 3, 2}, {cut(2)}), norm(2), 0, 6},
      {"group norm without weights", {random({2, 6, 3}, {cut(1)})}, norm(6), 0, 0},
      {"rms_norm, rows", {random({4, 3, 5}, {cut(0)}), random({5})}, root, 0, 1},
      {"rms_norm, features: one statistic each, both ways",
       {random({4, 3, 5}, {cut(2)}), random({5}, {cut(0)})},
       root,
       0,
       4},
  };
}

class RulesImage : public testing::TestWithParam<int> {};

TEST_P(RulesImage, Pooling) {
  expect({GetParam()}, pooling_cases());
}
TEST_P(RulesImage, Images) {
  expect({GetParam()}, image_cases());
}
TEST_P(RulesImage, ChannelNorms) {
  expect({GetParam()}, channel_norm_cases());
}
TEST_P(RulesImage, GroupNorms) {
  expect({GetParam()}, group_norm_cases());
}
INSTANTIATE_TEST_SUITE_P(Ranks, RulesImage, testing::Values(2, 3));

TEST(RulesImage, TwoAxes) {
  const auto groups = [](int64_t count) {
    return
        [count](const Tensors& x) -> Tensors { return {at::group_norm(x[0], count, x[1], x[2])}; };
  };
  expect(
      {2, 2},
      {
          {"pools, batch and channels", {random({3, 5, 6, 5}, {cut(0), cut(1)})}, pools, 0, 0},
          {"pools, channels and field: the field is gathered",
           {random({3, 5, 6, 5}, {cut(1), cut(3)})},
           pools,
           5},
          {"im2col, channels on both", {random({3, 5, 6, 5}, {cut(1), cut(1)})}, windows, 0, 0},
          {"pixel_shuffle, units on both",
           {random({2, 12, 3, 2}, {cut(1, 1, 4), cut(1, 1, 4)})},
           [](const Tensors& x) -> Tensors { return {at::pixel_shuffle(x[0], 2)}; },
           0,
           0},
          {"channel_shuffle, channels on both: gathered",
           {random({2, 8, 2}, {cut(1, 1, 2), cut(1, 1, 2)})},
           [](const Tensors& x) -> Tensors { return {at::channel_shuffle(x[0], 4)}; },
           1},
          {"batch norm, batch and channels", images_and_channels({3, 5, 2, 2}, {cut(0), cut(1)}),
           normalize(at::batch_norm, true), 0, 6},
          {"batch norm, batch and field", images_and_channels({3, 5, 2, 2}, {cut(0), cut(2)}),
           normalize(at::batch_norm, true), 0, 12},
          {"batch norm, channels on both", images_and_channels({3, 3, 2, 2}, {cut(1), cut(1)}),
           normalize(at::batch_norm, true), 0, 0},
          {"instance norm, batch and channels", images_and_channels({3, 5, 2, 2}, {cut(0), cut(1)}),
           normalize(at::instance_norm, true), 0, 3},
          {"group norm, batch and split groups",
           {random({3, 6, 2}, {cut(0), cut(1)}), random({6}), random({6})},
           groups(3),
           0,
           6},
          {"group norm, whole groups split again",
           {random({3, 4, 2}, {cut(1), cut(1)}), random({4}), random({4})},
           groups(2),
           0,
           4},
      });
}

}  // namespace
}  // namespace rule_case
