#include "parallelizers/deferred/deferred_init.h"

#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/deferred/current_model.h"
#include "parallelizers/deferred/fill.h"

namespace oslo {
namespace {

/// Of this thread's innermost guard.
thread_local std::shared_ptr<DeferredModel> current;

}  // namespace

std::shared_ptr<DeferredModel> current_deferred_model() {
  return current;
}

DeferredInit::DeferredInit()
    : outer_(std::exchange(current, std::make_shared<DeferredModel>())),
      was_active_(c10::impl::tls_is_dispatch_key_included(kDeferredKey)) {
  c10::impl::tls_set_dispatch_key_included(kDeferredKey, true);
}

DeferredInit::~DeferredInit() {
  c10::impl::tls_set_dispatch_key_included(kDeferredKey, was_active_);
  current = std::move(outer_);
}

bool DeferredInit::active() {
  return current != nullptr;
}

void materialize(const std::shared_ptr<torch::nn::Module>& model) {
  OSLO_CHECK(!DeferredInit::active(),
             "materialize under oslo::DeferredInit; let the guard end first");
  const ModelView view(model);
  check_fillable(view);
  fill(view);
}

}  // namespace oslo
