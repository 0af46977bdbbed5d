#pragma once

#include "tests/support/operator_examples/example.h"

namespace operator_examples {

inline Family normalizations() {
  return {"Softmax and normalization",
          "Statistics over a dimension that is cut are reduced, forward and backward.",
          {
              {"softmax.int", {x({5, 7}), 1}},
              {"_softmax", {x({5, 7}), 1, false}},
              {"_safe_softmax", {x({5, 7}), 1}},
              {"log_softmax.int", {x({5, 7}), 1}},
              {"_log_softmax", {x({5, 7}), 1, false}},
              {"layer_norm", {x({5, 7}), {7}, x({7}), x({7})}},
              {"rms_norm", {x({5, 7}), {7}, x({7})}},
              {"renorm", {x({5, 7}), 2, 0, 0.9}},
              Example("batch_norm", {x({5, 6, 7}), x({6}), x({6}), constant({6}), constant({6}),
                                     true, 0.1, 1e-5, true})
                  .noted("in training"),
              Example("batch_norm", {x({5, 6, 7}), x({6}), x({6}), constant({6}), constant({6}),
                                     false, 0.1, 1e-5, true})
                  .noted("in evaluation"),
              Example("native_batch_norm",
                      {x({5, 6, 7}), x({6}), x({6}), constant({6}), constant({6}), true, 0.1, 1e-5})
                  .noted("in training"),
              {"batch_norm_update_stats", {constant({5, 6, 7}), constant({6}), constant({6}), 0.1}},
              Example("instance_norm",
                      {x({5, 6, 7}), x({6}), x({6}), kNone, kNone, true, 0.1, 0.0, true},
                      "each image's statistics are taken of its whole field")
                  .noted("eps 0"),
              {"instance_norm",
               {x({5, 6, 7}), x({6}), x({6}), kNone, kNone, true, 0.1, 1e-5, true},
               "each image's statistics are taken of its whole field"},
              Example("group_norm", {x({5, 6, 7}), 3, x({6}), x({6})}).also({0, 1, 1, 2}),
              Example("group_norm", {x({2, 6, 7}), 3, x({6}), x({6}), 0.0})
                  .also({0, 1, 1, 2})
                  .noted("eps 0"),
          }};
}

inline Family losses() {
  return {
      "Losses",
      "Rows that are cut are summed, and divided by the global count. Classes that are cut "
      "stay: Megatron-LM's vocabulary-parallel cross entropy.",
      {
          {"cross_entropy_loss", {x({5, 7}), below(7, {5})}},
          {"nll_loss nll_loss_nd", {x({5, 7}), below(7, {5})}},
          {"nll_loss2d", {x({3, 7, 5, 6}), below(7, {3, 5, 6})}},
          {"mse_loss smooth_l1_loss huber_loss", {x({5, 7}), x({5, 7})}},
          {"soft_margin_loss", {x({5, 7}), constant({5, 7})}},
          {"binary_cross_entropy", {fraction({5, 7}), constant({5, 7})}},
          {"binary_cross_entropy_with_logits", {x({5, 7}), constant({5, 7}), kNone, constant({7})}},
      }};
}

/// After all others in `families`: what those draw stays.
inline Family loss_halves() {
  return {"Halves of losses",
          "What exported graphs call. Classes and rows that are cut stay.",
          {
              {"nll_loss_forward", {x({5, 7}), below(7, {5}), constant({7}), 1, -100}},
              {"nll_loss2d_forward", {x({3, 7, 5, 6}), below(7, {3, 5, 6}), kNone, 1, -100}},
              {"nll_loss_backward",
               {x({5}), constant({5, 7}), below(7, {5}), constant({7}), 0, -100, constant({})}},
              {"nll_loss2d_backward",
               {x({3, 5, 6}), constant({3, 7, 5, 6}), below(7, {3, 5, 6}), kNone, 0, -100,
                constant({})}},
          }};
}

/// Behind these, for the same reason.
inline Family norm_kernels() {
  return {"Kernels of norms",
          "What exported graphs call in place of a norm: statistics are results, too.",
          {
              {"native_layer_norm", {x({5, 7}), {7}, x({7}), x({7}), 1e-5}},
              Example("native_group_norm", {x({5, 6, 7}), x({6}), x({6}), 5, 6, 7, 3, 1e-5})
                  .also({0, 1, 1, 2}),
              Example("_native_batch_norm_legit",
                      {x({5, 6, 7}), x({6}), x({6}), constant({6}), constant({6}), true, 0.1, 1e-5})
                  .noted("in training"),
              Example("_native_batch_norm_legit", {x({5, 6, 7}), x({6}), x({6}), constant({6}),
                                                   constant({6}), false, 0.1, 1e-5})
                  .noted("in evaluation"),
              Example("_native_batch_norm_legit.no_stats",
                      {x({5, 6, 7}), x({6}), x({6}), true, 0.1, 1e-5})
                  .noted("in training"),
              {"_native_batch_norm_legit_no_training",
               {x({5, 6, 7}), x({6}), x({6}), constant({6}), constant({6}), 0.1, 1e-5}},
          }};
}

/// Likewise.
inline Family pointwise_kernels() {
  return {"Kernels of pointwise operators",
          "Element by element, with a second result for backward.",
          {
              {"log_sigmoid_forward", {x({5, 7})}},
              {"log_sigmoid_backward", {x({5, 7}), x({5, 7}), constant({5, 7})}},
          }};
}

}  // namespace operator_examples
