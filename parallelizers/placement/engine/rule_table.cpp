#include "parallelizers/placement/engine/rule_table.h"

#include "mpu/error.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// Marks an operator as pointwise in the table; the door runs it as such.
void listed_as_pointwise(Call&) {}

}  // namespace

RuleTable::RuleTable() {
  add_matmul_rules(*this);
  add_pointwise_rules(*this);
  add_reorder_rules(*this);
  add_reshape_rules(*this);
  add_slice_rules(*this);
  add_join_rules(*this);
  add_embedding_rules(*this);
  add_normalization_rules(*this);
  add_attention_rules(*this);
  add_loss_scaling_rules(*this);
  add_random_rules(*this);
  add_reduction_rules(*this);
  add_selection_rules(*this);
  add_comparison_rules(*this);
  add_loss_rules(*this);
  add_creation_rules(*this);
  add_contraction_rules(*this);
  add_elementwise_loss_rules(*this);
  add_nll_loss_rules(*this);
  add_embedding_bag_rules(*this);
  add_lookup_rules(*this);
  add_indexed_write_rules(*this);
  add_scan_rules(*this);
  add_recurrent_rules(*this);
  add_spectral_rules(*this);
  add_convolution_rules(*this);
  add_pooling_rules(*this);
  add_channel_norm_rules(*this);
  add_image_rules(*this);
}

const RuleTable& RuleTable::instance() {
  static const RuleTable table;
  return table;
}

Rule RuleTable::find(const std::string& name) const {
  const auto found = rules_.find(name);
  if (found == rules_.end()) return process_group_rule(name);
  return found->second == listed_as_pointwise ? nullptr : found->second;
}

bool RuleTable::listed_pointwise(const std::string& name) const {
  const auto found = rules_.find(name);
  return found != rules_.end() && found->second == listed_as_pointwise;
}

void RuleTable::add(std::initializer_list<const char*> names, Rule rule) {
  for (const char* name : names) {
    OSLO_CHECK(rules_.emplace(name, rule).second, "two rules for ", name);
  }
}

void RuleTable::add_pointwise(std::initializer_list<const char*> names) {
  add(names, listed_as_pointwise);
}

}  // namespace oslo
