// The families that the rule table is filled from.
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {

void register_rules(RuleTable& table) {
  add_matmul_rules(table);
  add_pointwise_rules(table);
  add_reorder_rules(table);
  add_reshape_rules(table);
  add_slice_rules(table);
  add_join_rules(table);
  add_turn_rules(table);
  add_triangle_rules(table);
  add_embedding_rules(table);
  add_normalization_rules(table);
  add_attention_rules(table);
  add_loss_scaling_rules(table);
  add_random_rules(table);
  add_reduction_rules(table);
  add_extreme_rules(table);
  add_selection_rules(table);
  add_comparison_rules(table);
  add_loss_rules(table);
  add_creation_rules(table);
  add_contraction_rules(table);
  add_elementwise_loss_rules(table);
  add_nll_loss_rules(table);
  add_embedding_bag_rules(table);
  add_lookup_rules(table);
  add_indexed_write_rules(table);
  add_scan_rules(table);
  add_recurrent_rules(table);
  add_recurrent_cell_rules(table);
  add_spectral_rules(table);
  add_convolution_rules(table);
  add_pooling_rules(table);
  add_batch_norm_rules(table);
  add_group_norm_rules(table);
  add_image_rules(table);
  add_process_group_rules(table);
}

}  // namespace oslo
