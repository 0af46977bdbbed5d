#pragma once

#include "tests/support/operator_examples/example.h"
#include "tests/support/operator_examples/reductions.h"

namespace operator_examples {

constexpr const char* kEveryStep =
    "every step needs the whole state and all gates; weights of which all are cut by hidden unit "
    "stay, and cells keep those that are cut by gate";

inline Family recurrent() {
  const auto layer = [](const char* names, int64_t gates, c10::IValue state) {
    return Example(names,
                   {x({4, 5, 7}), std::move(state),
                    list({x({gates * 6, 7}), x({gates * 6, 6}), x({gates * 6}), x({gates * 6})}),
                    true, 1, 0.0, true, false, false},
                   kEveryStep);
  };
  const auto packed = [](const char* names, int64_t gates, c10::IValue state) {
    return Example(
        names,
        {x({9, 7}), numbers({4, 3, 2}), std::move(state),
         list({x({gates * 6, 7}), x({gates * 6, 6}), x({gates * 6}), x({gates * 6})}), true, 1, 0.0,
         true, false},
        "which rows belong together follows from the values of the batch sizes; weights of "
        "which all are cut by hidden unit stay");
  };
  const auto cell = [](const char* names, int64_t gates, c10::IValue state, const char* why = "") {
    return Example(names,
                   {x({5, 7}), std::move(state), x({gates * 6, 7}), x({gates * 6, 6}),
                    x({gates * 6}), x({gates * 6})},
                   why);
  };
  return {"Recurrent networks",
          "Sequences of a batch may lie on different ranks. Weights of which all are cut by hidden "
          "unit stay (plan.md, recurrent layers); below, one operand at a time is cut.",
          {
              layer("lstm.input", 4, list({x({1, 5, 6}), x({1, 5, 6})})),
              layer("gru.input", 3, x({1, 5, 6})),
              layer("rnn_tanh.input rnn_relu.input", 1, x({1, 5, 6})),
              packed("lstm.data", 4, list({x({1, 4, 6}), x({1, 4, 6})})),
              packed("gru.data", 3, x({1, 4, 6})),
              packed("rnn_tanh.data rnn_relu.data", 1, x({1, 4, 6})),
              {"_pack_padded_sequence",
               {x({4, 3, 7}), numbers({4, 3, 2}), false},
               "where a row goes follows from the values of the lengths"},
              {"_pad_packed_sequence",
               {x({9, 7}), numbers({3, 3, 2, 1}), false, 0.0, 0},
               "where a row goes follows from the values of the lengths"},
              cell("lstm_cell", 4, list({x({5, 6}), x({5, 6})}), kEveryStep),
              cell("gru_cell", 3, x({5, 6}), kEveryStep),
              cell("rnn_tanh_cell rnn_relu_cell", 1, x({5, 6}), kEveryStep),
          }};
}

inline Family spectral() {
  constexpr const char* kTransformed = "a transform needs its whole dimension";
  return {"Fourier transforms and complex numbers",
          "Along other dimensions the cut stays.",
          {
              {"_fft_r2c", {x({5, 7}), {1}, 0, true}, kTransformed},
              {"_fft_c2r", {complex({5, 4}), {1}, 0, 7}, kTransformed},
              {"_fft_c2c", {complex({5, 7}), {1}, 0, true}, kTransformed},
              {"stft stft.center",
               {x({3, 21}), 8, is("hop_length", 3), is("return_complex", true)},
               kTransformed},
              {"istft", {complex({3, 5, 7}), 8}, kTransformed},
              {"view_as_real", {complex({5, 7})}},
              {"view_as_complex", {x({5, 7, 2})}, "a complex number is one element"},
              {"linalg_cross",
               {x({5, 3}), x({5, 3})},
               "products of different elements of the dimension"},
          }};
}

inline Family made() {
  return {
      "New tensors, random numbers, storage",
      "Random numbers are those of one device: every rank draws for the whole and keeps its "
      "part, or draws its own (`RandomMode`).",
      {
          {"new_zeros new_ones", {x({5, 7}), {3}}},
          Example("new_empty", {x({5, 7}), {3}}).checked_by(Check::shapes),
          {"new_full", {x({5, 7}), {3}, 0.5}},
          Example("rand_like randn_like", {x({5, 7})}).checked_by(Check::shapes),
          Example("randint_like", {x({5, 7}), 9}).checked_by(Check::shapes),
          Example("randint_like.low_dtype", {x({5, 7}), 3, 9}).checked_by(Check::shapes),
          Example("dropout dropout_", {x({5, 7}), 0.4, true}).checked_by(Check::shapes),
          {"rrelu rrelu_", {x({5, 7}), 0.1, 0.3, false}},
          Example("rrelu rrelu_", {x({5, 7}), 0.1, 0.3, true},
                  "how many numbers are drawn follows from the values")
              .noted("in training")
              .checked_by(Check::shapes),
          {"_amp_foreach_non_finite_check_and_unscale_",
           {list({constant({5, 7}).to(at::kFloat), constant({6}).to(at::kFloat)}), at::zeros({1}),
            at::full({1}, 0.5)}},
          Example("normal_ uniform_ bernoulli_.float exponential_ log_normal_ cauchy_ random_",
                  {constant({5, 7})})
              .checked_by(Check::shapes),
          Example("geometric_", {constant({5, 7}), 0.4}).checked_by(Check::shapes),
          Example("random_.from", {constant({5, 7}), 2, 9}).checked_by(Check::shapes),
          Example("random_.to", {constant({5, 7}), 9}).checked_by(Check::shapes),
          {"eye.m_out", {5, 7, at::zeros({5, 7})}},
          {"eye.out", {5, at::zeros({5, 5})}},
          Example("as_strided as_strided_", {constant({5, 7}), {5}, {7}})
              .checked_by(Check::refused),
          Example("set_", {constant({5, 7})}).checked_by(Check::refused),
          Example("_make_dual _make_dual_copy", {constant({5, 7}), constant({5, 7}), 0})
              .checked_by(Check::refused),
          Example("set_.source_Tensor resize_as_", {constant({5, 7}), constant({3})})
              .checked_by(Check::refused),
          Example("set_.source_Storage", {constant({5, 7}), c10::IValue(constant({3}).storage())})
              .checked_by(Check::refused),
          Example("set_.source_Storage_storage_offset",
                  {constant({5, 7}), c10::IValue(constant({3}).storage()), 0, {3}, {1}})
              .checked_by(Check::refused),
          Example("resize_", {constant({5, 7}), {3}}).checked_by(Check::refused),
      }};
}

inline Family pointwise() {
  constexpr int kFloat = static_cast<int>(at::kFloat);
  const c10::IValue cpu = c10::Device(c10::kCPU);
  return {
      "Pointwise operators",
      "",
      {
          {"copy_", {x({5, 7}), x({5, 7})}},
          {"masked_fill.Scalar masked_fill_.Scalar", {x({5, 7}), mask({5, 7}), 0.5}},
          {"masked_fill.Tensor masked_fill_.Tensor", {x({5, 7}), mask({5, 7}), x({})}},
          {"where.self", {mask({5, 7}), x({5, 7}), x({5, 7})}},
          {"where.ScalarSelf", {mask({5, 7}), 0.5, x({5, 7})}},
          {"where.ScalarOther", {mask({5, 7}), x({5, 7}), 0.5}},
          {"where.Scalar", {mask({5, 7}), 0.5, 1.5}},
          {"gelu gelu_ silu silu_ mish mish_ relu relu_ leaky_relu leaky_relu_ elu elu_ selu selu_ "
           "celu celu_ softplus hardtanh hardtanh_ hardsigmoid hardsigmoid_ hardswish "
           "hardswish_ abs_ zero_ clone contiguous detach detach_ alias _to_copy zeros_like "
           "ones_like isnan "
           "isinf isfinite nan_to_num square square_",
           {x({5, 7})}},
          {"threshold threshold_", {x({5, 7}), 0.1, 20.0}},
          {"copysign_.Tensor floor_divide floor_divide_.Tensor rsub.Tensor heaviside_",
           {x({5, 7}), x({5, 7})}},
          {"copysign_.Scalar floor_divide.Scalar floor_divide_.Scalar rsub.Scalar "
           "eq_.Scalar ne_.Scalar lt_.Scalar le_.Scalar gt_.Scalar ge_.Scalar",
           {x({5, 7}), 0.4}},
          {"eq_.Tensor ne_.Tensor lt_.Tensor le_.Tensor gt_.Tensor ge_.Tensor",
           {x({5, 7}), constant({5, 7})}},
          {"__irshift__.Tensor", {below(99, {5, 7}), below(4, {5, 7})}},
          {"__irshift__.Scalar", {below(99, {5, 7}), 2}},
          {"gcd_ lcm_", {below(99, {5, 7}) + 1, below(99, {5, 7}) + 1}},
          {"_prelu_kernel", {x({5, 7}), x({1, 7})}},
          {"fill_.Scalar full_like", {x({5, 7}), 0.5}},
          {"fill_.Tensor", {x({5, 7}), x({})}},
          {"to.dtype", {x({5, 7}), kFloat}},
          {"to.device", {x({5, 7}), cpu, kFloat}},
          {"to.dtype_layout", {x({5, 7}), is("dtype", kFloat)}},
          {"lerp.Scalar lerp_.Scalar", {x({5, 7}), x({5, 7}), 0.3}},
          {"lerp.Tensor lerp_.Tensor", {x({5, 7}), x({5, 7}), x({5, 7})}},
          Example("empty_like", {x({5, 7})}).checked_by(Check::shapes),
          {"complex polar", {fraction({5, 7}), x({5, 7})}},
          {"_conj", {complex({5, 7})}},
      },
      Kind::pointwise};
}

inline Family decomposed() {
  return {"Decomposed operators",
          "Operators that LibTorch defines by others run that definition, and its parts meet the "
          "rules above. Some of them, measured:",
          {
              {"narrow", {x({5, 7}), 0, 1, 3}},
              {"movedim.int", {x({5, 7, 6}), 0, 2}},
              {"unflatten.int", {x({5, 42}), 1, {7, 6}}, "as view"},
              {"kl_div", {x({5, 7}), constant({5, 7})}},
              {"l1_loss", {x({5, 7}), x({5, 7})}},
              {"cosine_similarity", {x({5, 7}), x({5, 7})}},
              {"take_along_dim", {x({5, 9}), places(5, 2, 9), 1}},
              {"argsort", {x({5, 7}), 1}, "as sort"},
              {"var.dim std.dim", {x({5, 7}), {1}}},
              {"tile", {x({5, 7}), {2, 1}}},
              {"inner", {x({5, 7}), x({6, 7})}},
              {"broadcast_tensors", {list({x({5, 7}), x({5, 1})})}},
              {"meshgrid.indexing", {list({x({5}), x({7})}), "ij"}},
              {"linalg_multi_dot", {list({x({5, 7}), x({7, 6}), x({6, 4})})}},
              {"cartesian_prod", {list({x({5}), x({7})})}},
              {"column_stack", {list({x({5}), x({5, 7})})}, "as cat"},
              {"_foreach_add.Scalar _foreach_mul.Scalar", {list({x({5, 7}), x({6})}), 0.5}},
              {"_foreach_add_.Scalar _foreach_mul_.Scalar",
               {list({constant({5, 7}), constant({6})}), 0.5}},
              {"_foreach_add.List _foreach_mul.List",
               {list({x({5, 7}), x({6})}), list({x({5, 7}), x({6})})}},
              {"_foreach_add_.List _foreach_mul_.List",
               {list({constant({5, 7}), constant({6})}), list({constant({5, 7}), constant({6})})},
               "writes into a tensor that is whole"},
              {"_foreach_addcdiv_.Scalar",
               {list({constant({5, 7}), constant({6})}), list({constant({5, 7}), constant({6})}),
                list({constant({5, 7}), constant({6})}), 0.1},
               "writes into a tensor that is whole"},
              {"_foreach_sqrt _foreach_neg", {list({fraction({5, 7}), fraction({6})})}},
              {"_foreach_zero_ _foreach_sqrt_", {list({constant({5, 7}), constant({6})})}},
              {"_foreach_norm.Scalar", {list({x({5, 7}), x({6})}), 2}},
              {"swapaxes_ swapdims_", {x({5, 7, 6}), 0, 2}},
              {"vstack dstack", {list({x({5, 7}), x({5, 7})})}, "as cat"},
          },
          Kind::decomposed};
}

inline Family unruled() {
  constexpr const char* kValues = "the shape of the result follows from values";
  constexpr const char* kMatrix = "a factorization needs the whole matrix";
  return {"Operators without a rule",
          "They are gathered first and computed whole on every rank. Some of them, measured; "
          "whichever a model meets, `parallel.plan()` names it, and "
          "[Adding a rule](adding-a-rule.md) says how to do better.",
          {
              {"nonzero", {mask({5, 7})}, kValues},
              {"masked_select", {x({5, 7}), mask({5, 7})}, kValues},
              {"unique_consecutive", {below(4, {7})}, kValues},
              {"masked_scatter",
               {x({5, 7}), mask({5, 7}), x({35})},
               "which element goes where follows from values"},
              {"take", {x({5, 7}), below(35, {4})}, "places in the flattened tensor"},
              {"put", {x({5, 7}), numbers({8, 3, 30}), x({3})}, "places in the flattened tensor"},
              {"histc", {constant({5, 7}), 4}, "the bounds follow from all elements"},
              {"median nanmedian", {x({5, 7})}, kSorted},
              {"multi_margin_loss", {x({5, 7}), below(7, {5})}, "rare"},
              {"_ctc_loss",
               {x({6, 3, 5}), below(4, {3, 2}) + 1, {6, 6, 6}, {2, 2, 2}},
               "a path through all steps of a sequence; rare"},
              {"linalg_inv_ex", {x({5, 5})}, kMatrix},
              {"linalg_qr", {x({7, 5})}, kMatrix},
          },
          Kind::unruled};
}

}  // namespace operator_examples
