#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/world/world.h"

namespace oslo::test {

/// What `body` throws on each rank; "" where nothing.
inline std::vector<std::string> errors_of(int size, const std::function<void(World)>& body) {
  std::vector<std::string> errors(size);
  run_as_threads(size, [&](World world) {
    try {
      body(world);
    } catch (const Error& error) {
      errors[world.rank()] = error.what();
    }
  });
  return errors;
}

}  // namespace oslo::test
