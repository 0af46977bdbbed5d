#pragma once

#include <oslo_cpp/train_net/trained_model.h>

namespace zoo {

/// Next tokens, each from those before it.
oslo::TrainedModel make_gpt2(const oslo::ModelRequest& request);
oslo::TrainedModel make_llama(const oslo::ModelRequest& request);

/// Masked tokens (Devlin et al. 2018): of each block 15 % are to be told, of which 80 % are
/// replaced by the last word of the vocabulary, 10 % by any, and 10 % stay.
oslo::TrainedModel make_bert(const oslo::ModelRequest& request);

/// The second half of each block from the first ("prefix language modelling", Raffel et al. 2019).
oslo::TrainedModel make_t5(const oslo::ModelRequest& request);

/// Of pictures their class; synthetic ones, a pattern of each class under noise.
oslo::TrainedModel make_vit(const oslo::ModelRequest& request);

}  // namespace zoo
