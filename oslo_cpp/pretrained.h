#pragma once

#include <torch/nn/pimpl.h>

#include <filesystem>

#include "checkpoint/pretrained/load_pretrained.h"
#include "checkpoint/pretrained/save_pretrained.h"
#include "oslo_cpp/model/parallel_model.h"

namespace oslo {

// Hugging Face folders of models as programs hold them: a module holder before `initialize`, what
// `initialize` returned afterwards. See load_pretrained.h and save_pretrained.h.

template <typename Impl>
PretrainedLoad load_pretrained(const torch::nn::ModuleHolder<Impl>& model,
                               const std::filesystem::path& folder,
                               const PretrainedOptions& options = {}) {
  return load_pretrained(ModelView(model.ptr()), folder, options);
}

/// Collective over the world.
inline PretrainedLoad load_pretrained(const ParallelModel& parallel,
                                      const std::filesystem::path& folder,
                                      const PretrainedOptions& options = {}) {
  return load_pretrained(ModelView(parallel.module()), parallel.mpu(), folder, options);
}

template <typename Impl>
void save_pretrained(const torch::nn::ModuleHolder<Impl>& model,
                     const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  save_pretrained(ModelView(model.ptr()), folder, options);
}

/// Collective over the world.
inline void save_pretrained(const ParallelModel& parallel, const std::filesystem::path& folder,
                            const PretrainedOptions& options = {}) {
  save_pretrained(ModelView(parallel.module()), parallel.mpu(), folder, options);
}

}  // namespace oslo
