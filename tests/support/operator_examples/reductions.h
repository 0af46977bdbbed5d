#pragma once

#include "tests/support/operator_examples/example.h"

namespace operator_examples {

constexpr const char* kSearched = "the result follows from all elements along the dimension";
constexpr const char* kSorted = "sorting moves elements between all places of the dimension";
inline Family reductions() {
  return {"Reductions",
          "What a rank holds is summed there, and the sums are summed.",
          {
              {"sum mean", {x({5, 7})}},
              {"sum.dim_IntList mean.dim", {x({5, 7}), {1}}},
              {"nansum", {x({5, 7}), {1}}},
              {"count_nonzero", {x({5, 7}), 1}},
              {"count_nonzero.dim_IntList", {x({5, 7}), {1}}},
              {"all any", {mask({5, 7})}},
              {"all.dim any.dim", {mask({5, 7}), 1}},
              {"all.dims any.dims", {mask({5, 7}), {1}}},
              {"norm.Scalar", {x({5, 7}), 2}},
              {"norm.ScalarOpt_dim linalg_vector_norm", {x({5, 7}), 2, {1}}},
              Example("linalg_vector_norm", {x({5, 7}), 0, {1}},
                      "an order that is no root of a sum of powers")
                  .noted("of order 0"),
              {"var.correction std.correction", {x({5, 7}), {1}}},
              {"var_mean.correction std_mean.correction", {x({5, 7}), {1}}},
              {"amax amin", {x({5, 7}), {1}}},
              Example("amax amin", {constant({5, 7}), {1}}).noted("without a gradient"),
              {"max min", {x({5, 7})}},
              Example("max min", {constant({5, 7})}).noted("without a gradient"),
              {"max.dim min.dim", {x({5, 7}), 1}, kSearched},
              {"logsumexp", {x({5, 7}), {1}}},
              {"prod.dim_int", {x({5, 7}), 1}},
              {"prod", {x({5, 7})}},
              {"trace", {x({5, 7})}},
              {"dist", {x({5, 7}), x({5, 7}), 2}},
              {"equal", {x({5, 7}), x({5, 7})}},
              {"allclose", {x({5, 7}), x({5, 7})}},
          }};
}

inline Family scans() {
  return {"Scans, sorting and selection",
          "Along other dimensions than their own these run on what a rank holds.",
          {
              {"cumsum cumprod cumsum_ cumprod_", {x({5, 7}), 1}},
              {"cummax cummin", {x({5, 7}), 1}, kSearched},
              {"logcumsumexp", {x({5, 7}), 1}, kSearched},
              {"sort", {x({5, 7}), 1}, kSorted},
              {"sort.stable", {x({5, 7}), true, 1}, kSorted},
              {"kthvalue", {x({5, 7}), 3, 1}, kSorted},
              {"median.dim nanmedian.dim mode", {x({5, 7}), 1}, kSearched},
              {"aminmax", {x({5, 7}), is("dim", 1)}, kSearched},
              {"quantile nanquantile", {x({5, 7}), constant({3}), 1}, kSorted},
              {"quantile.scalar nanquantile.scalar", {x({5, 7}), 0.4, 1}, kSorted},
              {"diff", {x({5, 7}), 1, 1, x({5, 2})}, "neighbours may lie on another rank"},
              {"argmax argmin", {x({5, 7}), 1}},
              {"topk",
               {x({5, 7}), 2, 1},
               "with a gradient the elements are gathered; without one, the ranks' best"},
              Example("topk", {constant({5, 7}), 2, 1}).noted("without a gradient"),
          }};
}

}  // namespace operator_examples
