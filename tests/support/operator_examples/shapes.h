#pragma once

#include "tests/support/operator_examples/example.h"

namespace operator_examples {

constexpr const char* kGoes = "one element of the dimension is on one rank only";
constexpr const char* kBlocks =
    "the pieces would lie on other ranks than their part; a cut in as many blocks stays (the plan "
    "learns it: `wants blocks`)";
constexpr const char* kUnits =
    "the new dimensions begin inside a rank's part; a cut in whole units stays (the plan learns "
    "it: `wants unit`)";

inline Family shapes() {
  return {
      "Shapes and views",
      "Moved, joined and split dimensions keep their cut wherever it has a place in the new "
      "shape.",
      {
          {"t numpy_T", {x({5, 7})}},
          {"transpose.int", {x({5, 7, 6}), 0, 2}},
          {"permute", {x({5, 7, 6}), {2, 0, 1}}},
          {"unsqueeze", {x({5, 7}), 1}},
          {"squeeze", {x({5, 1, 7})}},
          {"squeeze.dim", {x({5, 1, 7}), 1}},
          {"squeeze.dims", {x({5, 1, 7}), {1}}},
          {"unsqueeze_", {x({5, 7}), 1}},
          {"squeeze_", {x({5, 1, 7})}},
          {"squeeze_.dim", {x({5, 1, 7}), 1}},
          {"squeeze_.dims", {x({5, 1, 7}), {1}}},
          {"transpose_", {x({5, 7, 6}), 0, 2}},
          {"t_", {x({5, 7})}},
          {"view_as", {x({5, 42}), x({5, 7, 6})}, kUnits},
          {"tril triu", {x({3, 5, 7})}},
          {"diagonal", {x({5, 7, 6}), 1, 0, 2}, "the diagonal needs both of its dimensions"},
          {"diag_embed", {x({5, 7})}, "a diagonal has no place for the cut"},
          {"view reshape _unsafe_view", {x({5, 7, 6}), {5, 42}}},
          Example("view reshape _unsafe_view", {x({5, 42}), {5, 7, 6}}, kUnits).also({0, 1, 1, 6}),
          {"flatten.using_ints", {x({5, 7, 6}), 1, 2}},
          Example("split.Tensor unsafe_split.Tensor", {x({5, 9}), 3, 1}, kBlocks).also({0, 1, 3}),
          Example("split_with_sizes unsafe_split_with_sizes split.sizes", {x({5, 9}), {3, 3, 3}, 1},
                  kBlocks)
              .also({0, 1, 3}),
          Example("chunk unsafe_chunk", {x({5, 9}), 3, 1}, kBlocks).also({0, 1, 3}),
          {"tensor_split.tensor_indices_or_sections",
           {x({5, 9}), numbers({2, 6}), 1},
           "where to split follows from the values of all indices"},
          Example("slice.Tensor", {x({5, 9}), 1, 3, 6}).also({0, 1, 3}),
          {"select.int", {x({5, 7}), 1, 2}},
          {"unbind.int", {x({5, 7}), 1}, kGoes},
          {"cat",
           {list({x({5}), x({7})})},
           "what follows would lie on the ranks of what it follows"},
          {"cat concat concatenate",
           {list({x({5, 7}), x({5, 6})}), 1},
           "what follows would lie on the ranks of what it follows"},
          Example("glu", {x({5, 6}), 1}, kBlocks).also({0, 1, 2}),
          {"select_scatter", {x({5, 7}), x({5}), 1, 2}, kGoes},
          {"slice_scatter", {x({5, 9}), x({5, 3}), 1, 3, 6}, kBlocks},
          {"diagonal_scatter",
           {x({5, 7, 6}), x({7, 5}), 1, 0, 2},
           "the diagonal needs both of its dimensions"},
          {"stack", {list({x({5, 7}), x({5, 7})}), 1}},
          {"expand", {x({5, 1, 7}), {5, 3, 7}}},
          {"repeat_interleave.self_int", {x({5, 7}), 2, 1}},
          {"repeat", {x({5, 7}), {2, 1}}},
      }};
}

}  // namespace operator_examples
