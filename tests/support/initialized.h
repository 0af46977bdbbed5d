#pragma once

#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include "parallelizers/libtorch/keys.h"

namespace oslo::test {

inline InitializeOptions in(const World& world) {
  InitializeOptions how;
  how.world = world;
  return how;
}

/// No parameter is marked or tagged, no layer is a parallel one.
template <typename Model>
void expect_untouched(const Model& model) {
  for (const auto& item : model->named_parameters()) {
    EXPECT_FALSE(item.value().key_set().has(kPlacedKey)) << item.key();
    EXPECT_EQ(item.value().unsafeGetTensorImpl()->get_backend_meta(), nullptr) << item.key();
  }
  for (const auto& module : model->modules(false)) {
    EXPECT_THAT(module->name(), testing::Not(testing::HasSubstr("Parallel")));
  }
}

}  // namespace oslo::test
