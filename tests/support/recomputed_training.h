#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include "tests/support/catalogue_entry.h"
#include "tests/support/pipeline_parity.h"

// Models with "activation_checkpoint" in the config, and "amp" beside it, against the plain model
// on one device, under a guard of the same type: outputs, losses, gradients of every step, weights
// after the last. On one rank the same bits, over ranks but for roundings.
namespace catalogue {

struct RecomputedCase {
  std::string form;  ///< "whole", "every", "modules", "keep"; "none": nothing is computed again
  torch::Dtype type = torch::kFloat;
  pipeline_parity::Grid grid;

  std::string name() const {
    const char* const of = type == torch::kFloat  ? "float32"
                           : type == torch::kHalf ? "float16"
                                                  : "bfloat16";
    return form + "_" + of + "_" + grid.name();
  }
  int micro_batches() const { return grid.pipeline > 1 ? 2 : 1; }
  int parts() const { return micro_batches() * grid.data; }
};

/// All of the forms, types and grids.
inline std::vector<RecomputedCase> recomputed_cases() {
  std::vector<RecomputedCase> cases;
  for (const pipeline_parity::Grid grid : std::vector<pipeline_parity::Grid>{
           {1, 1, 1}, {1, 2, 1}, {1, 3, 1}, {1, 1, 2}, {1, 2, 2}, {2, 1, 1}}) {
    for (const torch::Dtype type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
      for (const char* form : {"whole", "every", "modules", "keep"}) {
        cases.push_back({form, type, grid});
      }
    }
  }
  return cases;
}

/// Trains the plain model and the one of the config, and compares. OSLO_TEST_KEEPS_ALL leaves
/// 'activation_checkpoint' out, which tells whether that is at fault.
void expect_recomputed(const Entry& entry, RecomputedCase how);

}  // namespace catalogue
