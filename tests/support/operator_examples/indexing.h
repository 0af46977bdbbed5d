#pragma once

#include "tests/support/operator_examples/example.h"

namespace operator_examples {

constexpr const char* kWritten =
    "which rank an index writes to follows from its value, and one element may be written twice";
constexpr const char* kList = "each element is compared with all of the list";

inline Family lookups() {
  return {"Looking up by index",
          "A table that is cut where it is looked up: every rank looks up what it holds, and the "
          "results are summed, where that moves less than the table (twice the results are no more "
          "than its elements); else the table is gathered.",
          {
              {"embedding", {x({9, 7}), below(9, {5})}},
              {"embedding_bag",
               {x({9, 7}), below(9, {6}), numbers({0, 2, 5})},
               "which bag an index belongs to follows from the values of the offsets"},
              {"embedding_bag.padding_idx",
               {x({9, 7}), below(9, {6}), numbers({0, 2, 5}), false, 0, false, kNone, false, 2},
               "which bag an index belongs to follows from the values of the offsets"},
              {"gather", {x({5, 9}), 1, places(5, 2, 9)}},
              {"gather", {x({5, 9}), 1, places(5, 6, 9)}, "many results: the table is smaller"},
              {"index_select", {x({9, 7}), 0, below(9, {3})}},
              {"index.Tensor", {x({9, 7}), indices({below(9, {3})})}},
              Example("index.Tensor", {x({9, 7}), indices({mask({9})})},
                      "how many elements a mask takes of each rank follows from its values")
                  .noted("by a mask"),
              {"searchsorted.Tensor", {sorted(9), constant({5, 7})}, kList},
              {"bucketize.Tensor", {constant({5, 7}), sorted(9)}, kList},
              {"isin.Tensor_Tensor", {below(9, {5, 7}), below(9, {6})}, kList},
              {"one_hot", {below(4, {5, 7}), 4}},
              {"bincount", {below(4, {7}), x({7}), 4}},
          }};
}

inline Family writes() {
  return {
      "Writing by index",
      "Dimensions that no index speaks of stay cut.",
      {
          {"scatter.src scatter_add scatter_.src scatter_add_",
           {x({5, 7}), 1, places(5, 3, 7), x({5, 3})},
           kWritten},
          {"scatter.value scatter_.value", {x({5, 7}), 1, places(5, 3, 7), 0.5}, kWritten},
          {"scatter.reduce scatter_.reduce",
           {x({5, 7}), 1, places(5, 3, 7), x({5, 3}), "add"},
           kWritten},
          {"scatter.value_reduce scatter_.value_reduce",
           {x({5, 7}), 1, places(5, 3, 7), 0.5, "add"},
           kWritten},
          {"scatter_reduce.two scatter_reduce_.two",
           {x({5, 7}), 1, places(5, 3, 7), x({5, 3}), "sum"},
           kWritten},
          {"index_add index_copy index_add_ index_copy_",
           {x({5, 7}), 1, numbers({4, 0, 2}), x({5, 3})},
           kWritten},
          {"index_reduce index_reduce_",
           {x({5, 7}), 1, numbers({4, 0, 2}), x({5, 3}), "mean"},
           kWritten},
          {"fill_diagonal_", {x({5, 7}), 0.5, false}, "the diagonal needs both of its dimensions"},
          {"index_fill.int_Scalar index_fill_.int_Scalar",
           {x({5, 7}), 1, numbers({4, 0, 2}), 0.5},
           kWritten},
          {"index_fill.int_Tensor index_fill_.int_Tensor",
           {x({5, 7}), 1, numbers({4, 0, 2}), x({})},
           kWritten},
          {"index_put index_put_ _index_put_impl_",
           {x({5, 7}), indices({at::Tensor(), numbers({4, 0, 2})}), x({5, 3})},
           kWritten},
          Example("index_put index_put_ _index_put_impl_",
                  {x({5, 7}), indices({mask({5, 7})}), x({})}, "writes into a tensor that is whole")
              .noted("by a mask"),
      }};
}

}  // namespace operator_examples
