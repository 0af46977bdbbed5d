#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace oslo {

/// Puts generators back to where they were, at the end of its life.
class RandomStates {
 public:
  explicit RandomStates(const std::vector<at::Generator>& generators);
  ~RandomStates();
  RandomStates(const RandomStates&) = delete;
  RandomStates& operator=(const RandomStates&) = delete;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace oslo
