#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "oslo_cpp/config/config.h"
#include "oslo_cpp/engine/engine.h"
#include "oslo_cpp/engine/engine_loader.h"
#include "oslo_cpp/initialize/initialize.h"
#include "oslo_cpp/model/parallel_model.h"

namespace oslo {

/// What `initialize` with an optimizer returns: `auto [engine, train_loader] = ...`.
template <typename EngineType, typename LoaderType>
struct EngineAndLoader {
  EngineType engine;
  LoaderType loader;
};

/// The model, and the keys of its config that an engine acts by.
ParallelModel initialize_for_engine(std::shared_ptr<torch::nn::Module> model,
                                    torch::optim::Optimizer& optimizer, const Config& config,
                                    InitializeOptions options);

/// Colossal-AI's one call: makes `model` parallel as initialize.h says, and returns an engine that
/// trains it by `optimizer` and `criterion` as the config says (engine/engine.h), and `loader` for
/// this data rank (engine/engine_loader.h).
///
///     torch::nn::CrossEntropyLoss criterion;
///     auto [engine, train_loader] =
///         oslo::initialize(model, optimizer, criterion, loader, config);
///
/// `model` is a module holder or a shared_ptr to a module; `optimizer` any of LibTorch's, made of
/// its parameters, not stepped yet; `criterion` anything that is called with an output and a label
/// and returns a loss, one number, or a CountedLoss; `loader` a LibTorch data loader or any range
/// of batches. Optimizer, and a loader that is not handed over (`std::move`), must outlive what is
/// returned.
///
/// Throws `Error` as `initialize` does, on every rank; also for gradient handlers that leave data
/// ranks apart. Collective over the world. At size 1 the engine accumulates, clips and scales.
template <typename Model, typename Criterion, typename Loader>
auto initialize(const Model& model, torch::optim::Optimizer& optimizer, Criterion criterion,
                Loader&& loader, const Config& config = {}, const InitializeOptions& options = {}) {
  using Given = EngineLoader<Loader>;
  const auto& module = detail::ModuleOf<Model>::pointer(model);
  InitializeOptions how = options;
  how.class_stages = class_stages(module);
  ParallelModel parallel = initialize_for_engine(std::shared_ptr<torch::nn::Module>(module),
                                                 optimizer, config, std::move(how));
  const auto share = std::make_shared<BatchShare>();
  Given own(std::forward<Loader>(loader),
            LoaderPart(parallel.mpu(), config.values().engine.gradient_accumulation, Given::divides,
                       share));
  return EngineAndLoader<Engine<Model, Criterion>, Given>{
      Engine<Model, Criterion>(model, optimizer, std::move(criterion), std::move(parallel), share),
      std::move(own)};
}

}  // namespace oslo
