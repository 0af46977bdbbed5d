#pragma once

#include <memory>

namespace oslo {

struct DeferredModel;

/// Of this thread's innermost DeferredInit; null without one.
std::shared_ptr<DeferredModel> current_deferred_model();

}  // namespace oslo
