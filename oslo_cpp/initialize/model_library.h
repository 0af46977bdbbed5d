#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>

#include "oslo_cpp/initialize/initialize.h"

namespace oslo {

/// What a shared library offers to `oslo plan`: a model, and how it is initialized.
struct LibraryModel {
  std::shared_ptr<torch::nn::Module> model;
  InitializeOptions options;  ///< the example inputs above all; `world` is replaced
};

/// What OSLO_MODEL_LIBRARY defines calls this. `words` are what `oslo plan` was given after the
/// library: a config file, and `path=value` overrides; without any the model is cut over all ranks.
/// Prints the plan and ends the process with 0, or prints an error and returns 1.
int plan_library_model(const std::function<LibraryModel()>& make, int word_count,
                       const char* const* words);

}  // namespace oslo

/// Makes a shared library one that `oslo plan -n 8 ./libnet.so` can read, once in one of its files:
///
///     OSLO_MODEL_LIBRARY([] {
///       Net net;
///       oslo::InitializeOptions how;
///       how.example_inputs = [net]() mutable { net->forward(torch::zeros({8, 128})); };
///       return oslo::LibraryModel{net.ptr(), how};
///     })
#define OSLO_MODEL_LIBRARY(...)                                            \
  extern "C" __attribute__((visibility("default"))) int oslo_plan_library( \
      int word_count, const char* const* words) {                          \
    return ::oslo::plan_library_model(__VA_ARGS__, word_count, words);     \
  }
