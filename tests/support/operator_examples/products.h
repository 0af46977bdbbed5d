#pragma once

#include "tests/support/operator_examples/example.h"

namespace operator_examples {

constexpr const char* kAdded =
    "what is added lies as the product does; a plan cuts a bias as its weight's rows";

constexpr const char* kFactors = "fractional factors of integers are LibTorch's own to round";

inline Family products() {
  return {
      "Products",
      "What is summed over and cut is a partial sum and reduced; a dimension of the result stays "
      "cut, and the operand without it gets its gradient reduced. Column parallel is the weight's "
      "first row, row parallel its second, batch parallel the input's.",
      {
          {"matmul mm", {x({5, 7}), x({7, 6})}},
          {"bmm", {x({3, 5, 7}), x({3, 7, 6})}},
          {"mv", {x({5, 7}), x({7})}},
          {"dot", {x({7}), x({7})}},
          {"linear", {x({5, 7}), x({6, 7}), x({6})}, kAdded},
          {"addmm", {x({6}), x({5, 7}), x({7, 6})}, kAdded},
          {"addmm_", {x({5, 6}), x({5, 7}), x({7, 6})}, kAdded},
          {"baddbmm baddbmm_", {x({3, 5, 6}), x({3, 5, 7}), x({3, 7, 6})}, kAdded},
          {"addbmm addbmm_", {x({5, 6}), x({3, 5, 7}), x({3, 7, 6})}, kAdded},
          {"addmv addmv_", {x({5}), x({5, 7}), x({7})}, kAdded},
          Example("addr addr_", {mask({5, 6}), mask({5}), mask({6}), is("beta", 2), is("alpha", 3)},
                  "factors of truth values are truth values")
              .noted("of truth values"),
          {"addr addr_", {x({5, 6}), x({5}), x({6})}, kAdded},
          Example("addmm addmm_",
                  {below(9, {5, 6}), below(9, {5, 7}), below(9, {7, 6}), is("beta", 0.5),
                   is("alpha", 2.5)},
                  kFactors)
              .noted("of integers"),
          Example("baddbmm baddbmm_",
                  {below(9, {3, 5, 6}), below(9, {3, 5, 7}), below(9, {3, 7, 6}), is("beta", 0.5),
                   is("alpha", 2.5)},
                  kFactors)
              .noted("of integers"),
          Example("addbmm addbmm_",
                  {below(9, {5, 6}), below(9, {3, 5, 7}), below(9, {3, 7, 6}), is("beta", 1.5),
                   is("alpha", 2.5)},
                  kFactors)
              .noted("of integers"),
          Example(
              "addmv addmv_",
              {below(9, {5}), below(9, {5, 7}), below(9, {7}), is("beta", 1.5), is("alpha", 2.5)},
              kFactors)
              .noted("of integers"),
          {"einsum", {"bij,kj->bki", list({x({3, 5, 7}), x({6, 7})})}},
          {"tensordot", {x({5, 7}), x({6, 7}), {1}, {1}}},
          {"bilinear", {x({5, 7}), x({5, 6}), x({9, 7, 6}), x({9})}, kAdded},
          {"cdist",
           {x({5, 7}), x({6, 7}), 2.0},
           "a distance is no sum over the coordinates before its root is taken"},
          {"scaled_dot_product_attention",
           {x({3, 5, 4, 7}), x({3, 5, 6, 7}), x({3, 5, 6, 9})},
           "a softmax over the keys needs all of them; cut heads or the batch instead"},
          {"scaled_dot_product_attention",
           {x({3, 10, 4, 7}), x({3, 5, 6, 7}), x({3, 5, 6, 9}), is("enable_gqa", true)},
           "a softmax over the keys needs all of them; query heads are cut as their key heads are"},
      }};
}

}  // namespace operator_examples
