#include "parallelizers/memory/offload/offload_scope.h"

#include "mpu/base/error.h"
#include "parallelizers/memory/offload/store.h"
#include "parallelizers/memory/saved_tensors.h"

namespace oslo {
namespace {

void check_bytes(const char* name, int64_t bytes) {
  OSLO_CHECK(bytes >= 1, "OffloadOptions::", name, "(", bytes, "): give a number of bytes from 1");
}

}  // namespace

OffloadOptions& OffloadOptions::at_least(int64_t bytes) {
  check_bytes("at_least", bytes);
  at_least_ = bytes;
  return *this;
}

OffloadOptions& OffloadOptions::ahead(int64_t bytes) {
  check_bytes("ahead", bytes);
  ahead_ = bytes;
  return *this;
}

struct OffloadScope::Scopes {
  explicit Scopes(std::shared_ptr<offload::Store> made) : store(std::move(made)) {}

  std::shared_ptr<offload::Store> store;
  // Graphs keep the store: they outlive the scope.
  SavedTensorScope saving{[store = store](const at::Tensor& saved) { return store->pack(saved); }};
};

OffloadScope::OffloadScope(const std::vector<at::Tensor>& stays, const OffloadOptions& options)
    : scopes_(std::make_unique<Scopes>(
          std::make_shared<offload::Store>(options.at_least(), options.ahead()))) {
  scopes_->store->stay(stays);
}

OffloadScope::~OffloadScope() = default;

int64_t OffloadScope::moved() const {
  return scopes_->store->moved();
}

}  // namespace oslo
