#pragma once

#include <torch/library.h>

#include <utility>

namespace oslo {

/// Runs a kernel for every operator that meets a tensor with a dispatch key, for as long as the
/// object lives. LibTorch has one such place for each key in a process; a second registration
/// throws. An object at namespace scope registers when the library is loaded.
class KeyFallback {
 public:
  /// `kernel`: of `torch::CppFunction::makeFromBoxedFunction`.
  KeyFallback(c10::DispatchKey key, torch::CppFunction kernel)
      : library_(torch::Library::IMPL, "_", key, __FILE__, __LINE__) {
    library_.fallback(std::move(kernel));
  }

 private:
  torch::Library library_;
};

}  // namespace oslo
