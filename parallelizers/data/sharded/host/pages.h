#pragma once

#include <cstddef>

namespace oslo {

constexpr size_t kPage = 4096;

inline size_t whole_pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace oslo
