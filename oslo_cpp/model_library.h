#pragma once

/// What a library of models that `oslo plan` and `oslo verify` load says of itself.
#include "oslo_cpp/initialize/model_library.h"  // IWYU pragma: export
