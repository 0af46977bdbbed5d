#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <string_view>

namespace oslo {

/// Gives the contents of the storage `key`, exactly `bytes` long; throws `Error` if it cannot.
using StorageLoader = std::function<c10::Storage(std::string_view key, uint64_t bytes)>;

}  // namespace oslo
