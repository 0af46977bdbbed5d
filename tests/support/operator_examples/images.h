#pragma once

#include "tests/support/operator_examples/example.h"

namespace operator_examples {

constexpr const char* kWindow =
    "windows reach across the cut of a field; cut the batch or the channels";
constexpr const char* kMoves = "elements move along the dimension, to other ranks";
constexpr const char* kUnit =
    "a rank must hold whole groups; a cut in such units stays (the plan learns it: `wants unit`)";

inline Family convolutions() {
  // As LibTorch's own layers end up asking, with switches of the backend as the last arguments.
  const auto asked = [](size_t switches) {
    std::vector<Argument> arguments{x({3, 6, 5, 7}), x({5, 6, 3, 3}), x({5}), {1, 1}, {0, 0},
                                    {1, 1},          false,           {0, 0}, 1};
    arguments.insert(arguments.end(), switches, false);
    return arguments;
  };
  return {
      "Convolutions",
      "Output channels cut as columns, input channels as rows (a partial sum), groups whole.",
      {
          {"conv1d", {x({3, 6, 9}), x({5, 6, 3}), x({5})}, kWindow},
          {"conv2d", {x({3, 6, 5, 7}), x({5, 6, 3, 3}), x({5})}, kWindow},
          {"conv3d", {x({3, 6, 5, 4, 7}), x({5, 6, 3, 3, 3}), x({5})}, kWindow},
          {"conv1d.padding", {x({3, 6, 9}), x({5, 6, 3}), x({5}), {1}, "same"}, kWindow},
          {"conv2d.padding", {x({3, 6, 5, 7}), x({5, 6, 3, 3}), x({5}), {1, 1}, "same"}, kWindow},
          {"conv3d.padding",
           {x({3, 6, 5, 4, 7}), x({5, 6, 3, 3, 3}), x({5}), {1, 1, 1}, "same"},
           kWindow},
          {"_convolution_mode",
           {x({3, 6, 5, 7}), x({5, 6, 3, 3}), x({5}), {1, 1}, "same", {1, 1}, 1},
           kWindow},
          Example("conv1d", {x({3, 6, 9}), x({9, 2, 3}), x({9}), {1}, {0}, {1}, 3},
                  "groups are cut whole, and windows reach across the cut of a field")
              .noted("in 3 groups")
              .also({0, 1, 1, 2})
              .also({1, 0, 1, 3}),
          {"conv_transpose1d", {x({3, 6, 9}), x({6, 5, 3}), x({5})}, kWindow},
          {"conv_transpose2d.input", {x({3, 6, 5, 7}), x({6, 5, 3, 3}), x({5})}, kWindow},
          {"conv_transpose3d.input", {x({3, 6, 5, 4, 7}), x({6, 5, 3, 3, 3}), x({5})}, kWindow},
          {"convolution", asked(0), kWindow},
          {"_convolution", asked(4), kWindow},
          {"_convolution.deprecated", asked(3), kWindow},
      }};
}

inline Family pooling() {
  const auto line = [] { return x({3, 5, 9}); };
  const auto image = [] { return x({3, 5, 6, 7}); };
  const auto volume = [] { return x({3, 5, 6, 4, 7}); };
  const auto own_places = [](at::IntArrayRef sizes, int64_t field) {
    return at::arange(field).view(sizes.slice(2)).expand(sizes).contiguous();
  };
  return {
      "Pooling and resampling",
      "Image by image and channel by channel.",
      {
          {"max_pool1d max_pool1d_with_indices avg_pool1d", {line(), {2}, {2}}, kWindow},
          {"adaptive_avg_pool1d adaptive_max_pool1d", {line(), {3}}, kWindow},
          {"upsample_nearest1d _upsample_nearest_exact1d", {line(), {13}}, kWindow},
          {"upsample_nearest1d.vec _upsample_nearest_exact1d.vec", {line(), {13}, kNone}, kWindow},
          {"upsample_linear1d", {line(), {13}, false}, kWindow},
          {"upsample_linear1d.vec", {line(), {13}, false, kNone}, kWindow},
          {"max_pool2d max_pool2d_with_indices avg_pool2d", {image(), {2, 2}, {2, 2}}, kWindow},
          {"adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d",
           {image(), {3, 2}},
           kWindow},
          {"max_unpool2d", {x({3, 5, 3, 2}), own_places({3, 5, 3, 2}, 6), {6, 4}}, kWindow},
          {"upsample_nearest2d _upsample_nearest_exact2d", {image(), {9, 8}}, kWindow},
          {"upsample_nearest2d.vec _upsample_nearest_exact2d.vec",
           {image(), {9, 8}, kNone},
           kWindow},
          {"upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
           {image(), {9, 8}, false},
           kWindow},
          {"upsample_bilinear2d.vec upsample_bicubic2d.vec _upsample_bilinear2d_aa.vec "
           "_upsample_bicubic2d_aa.vec",
           {image(), {9, 8}, false, kNone},
           kWindow},
          {"max_pool3d max_pool3d_with_indices avg_pool3d",
           {volume(), {2, 2, 2}, {2, 2, 2}},
           kWindow},
          {"adaptive_avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d",
           {volume(), {3, 2, 3}},
           kWindow},
          {"max_unpool3d",
           {x({3, 5, 3, 2, 3}), own_places({3, 5, 3, 2, 3}, 18), {6, 4, 6}, {2, 2, 2}, {0, 0, 0}},
           kWindow},
          {"upsample_nearest3d _upsample_nearest_exact3d", {volume(), {9, 8, 8}}, kWindow},
          {"upsample_nearest3d.vec _upsample_nearest_exact3d.vec",
           {volume(), {9, 8, 8}, kNone},
           kWindow},
          {"upsample_trilinear3d", {volume(), {9, 8, 8}, false}, kWindow},
          {"upsample_trilinear3d.vec", {volume(), {9, 8, 8}, false, kNone}, kWindow},
          {"fractional_max_pool2d",
           {x({3, 5, 9, 7}), {2, 2}, {4, 3}, constant({3, 5, 2})},
           kWindow},
          {"fractional_max_pool3d",
           {x({3, 5, 7, 6, 8}), {2, 2, 2}, {3, 3, 3}, constant({3, 5, 3})},
           kWindow},
          {"grid_sampler grid_sampler_2d",
           {image(), fraction({3, 4, 9, 2}), 0, 0, false},
           "points read anywhere in the field"},
          {"grid_sampler_3d",
           {volume(), fraction({3, 4, 9, 5, 3}), 0, 0, false},
           "points read anywhere in the field"},
      }};
}

inline Family images() {
  return {
      "Padding, rolling and pixels",
      "Along other dimensions than those that elements move in, the cut stays.",
      {
          {"constant_pad_nd", {x({5, 7}), {1, 2}}, kMoves},
          {"_pad_circular reflection_pad1d replication_pad1d", {x({3, 5, 7}), {1, 2}}, kMoves},
          {"reflection_pad2d replication_pad2d", {x({3, 5, 6, 7}), {1, 2, 1, 1}}, kMoves},
          {"reflection_pad3d replication_pad3d", {x({3, 5, 6, 4, 7}), {1, 2, 1, 1, 2, 1}}, kMoves},
          {"roll", {x({5, 7}), {2}, {1}}},
          {"flip", {x({5, 7}), {1}}},
          {"rot90", {x({5, 7, 6}), 1, {0, 1}}},
          {"unfold unfold_copy", {x({5, 7}), 1, 3, 2}, kWindow},
          Example("pixel_shuffle", {x({3, 12, 5, 7}), 2}, kUnit).also({0, 1, 1, 4}),
          {"pixel_unshuffle", {x({3, 5, 6, 4}), 2}, kWindow},
          Example("channel_shuffle native_channel_shuffle", {x({5, 6, 7}), 3}, kUnit)
              .also({0, 1, 1, 2})
              .also({0, 1, 3}),
          {"im2col", {x({3, 5, 6, 7}), {2, 3}, {1, 1}, {0, 0}, {1, 1}}, kWindow},
          Example("col2im", {x({3, 30, 25}), {6, 7}, {2, 3}, {1, 1}, {0, 0}, {1, 1}},
                  "windows overlap, and a channel's window must be whole")
              .also({0, 1, 1, 6}),
          {"affine_grid_generator",
           {x({5, 2, 3}), {5, 4, 6, 7}, false},
           "a matrix of 2 x 3 is used whole by every point"},
      }};
}

}  // namespace operator_examples
