#include "oslo_cpp/exported/training_flag.h"

namespace oslo::exported {
namespace {

constexpr TrainingFlag kFlags[] = {
    {"aten::dropout", "train"},
    {"aten::dropout_", "train"},
    {"aten::native_dropout", "train"},
    {"aten::feature_dropout", "train"},
    {"aten::feature_dropout_", "train"},
    {"aten::alpha_dropout", "train"},
    {"aten::alpha_dropout_", "train"},
    {"aten::feature_alpha_dropout", "train"},
    {"aten::feature_alpha_dropout_", "train"},
    {"aten::rrelu", "training"},
    {"aten::rrelu_", "training"},
    {"aten::scaled_dot_product_attention", "dropout_p", true},
    // Without running statistics a norm takes the batch's, in evaluation, too.
    {"aten::batch_norm", "training", false, "running_mean"},
    {"aten::instance_norm", "use_input_stats", false, "running_mean"},
    {"aten::lstm", "train"},
    {"aten::gru", "train"},
    {"aten::rnn_tanh", "train"},
    {"aten::rnn_relu", "train"},
};

}  // namespace

const TrainingFlag* training_flag(std::string_view operator_name) {
  for (const TrainingFlag& flag : kFlags) {
    if (flag.operator_name == operator_name) return &flag;
  }
  return nullptr;
}

}  // namespace oslo::exported
