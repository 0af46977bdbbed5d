#pragma once

namespace oslo {

class RuleTable;

/// The families of rules, one file each. register.cpp lists them.
void add_matmul_rules(RuleTable& table);
void add_pointwise_rules(RuleTable& table);
void add_reorder_rules(RuleTable& table);
void add_reshape_rules(RuleTable& table);
void add_slice_rules(RuleTable& table);
void add_join_rules(RuleTable& table);
void add_turn_rules(RuleTable& table);
void add_triangle_rules(RuleTable& table);
void add_embedding_rules(RuleTable& table);
void add_normalization_rules(RuleTable& table);
void add_attention_rules(RuleTable& table);
void add_loss_scaling_rules(RuleTable& table);
void add_random_rules(RuleTable& table);
void add_reduction_rules(RuleTable& table);
void add_extreme_rules(RuleTable& table);
void add_selection_rules(RuleTable& table);
void add_comparison_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);
void add_creation_rules(RuleTable& table);
void add_contraction_rules(RuleTable& table);
void add_elementwise_loss_rules(RuleTable& table);
void add_nll_loss_rules(RuleTable& table);
void add_embedding_bag_rules(RuleTable& table);
void add_lookup_rules(RuleTable& table);
void add_indexed_write_rules(RuleTable& table);
void add_scan_rules(RuleTable& table);
void add_recurrent_rules(RuleTable& table);
void add_recurrent_cell_rules(RuleTable& table);
void add_spectral_rules(RuleTable& table);
void add_convolution_rules(RuleTable& table);
void add_pooling_rules(RuleTable& table);
void add_batch_norm_rules(RuleTable& table);
void add_group_norm_rules(RuleTable& table);
void add_image_rules(RuleTable& table);
/// LibTorch's operators that move memory between ranks (`group->allreduce({p.grad()})` enters the
/// dispatcher as c10d::allreduce_). On a marked tensor they act on what this rank holds of it, in
/// place, as on an ordinary tensor: all ranks of a data-parallel group hold the same part. Refused
/// by name: activations, which have no memory of their shape; sums and broadcasts over ranks that
/// hold other parts; operators on group names.
void add_process_group_rules(RuleTable& table);

}  // namespace oslo
