#pragma once

namespace oslo {

/// Whether torch::nn::MultiheadAttention is asking. It compares its query with its key, and its key
/// with its value, to project those that are equal in one product: either answer is right. The
/// calls in progress tell; to ask them takes some microseconds.
bool attention_asks();

}  // namespace oslo
