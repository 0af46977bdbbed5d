#pragma once

#include <string>

#include "oslo_cpp/train_net/trained_model.h"

namespace oslo {

/// The models of a shared library that has OSLO_TRAINED_MODELS in it. It stays loaded. Throws
/// `FileError` for one that is not there or cannot be loaded, `ConfigError` for one without models.
TrainedModels load_trained_models(const std::string& library);

/// The library of models beside the running program: where it was built, or in an installed tree.
/// Throws `ConfigError`, naming where it was looked for and how to name one.
std::string find_model_library();

}  // namespace oslo
