// The tutorials' models as a library that `oslo train` takes its models from: model.name.
#include <oslo_cpp/train_net/trained_model.h>

#include "zoo_models.h"

OSLO_TRAINED_MODELS({"bert", zoo::make_bert}, {"gpt2", zoo::make_gpt2}, {"llama", zoo::make_llama},
                    {"t5", zoo::make_t5}, {"vit", zoo::make_vit})
