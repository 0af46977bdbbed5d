#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "oslo_cpp/engine/engine_schedule.h"
#include "oslo_cpp/training/trainer/trainer_core.h"

namespace oslo {

struct FitOptions {
  /// How many epochs the training has, those of a run that is resumed among them.
  TORCH_ARG(int64_t, epochs) = 1;
  /// After so many optimizer steps training ends; 0: behind the last epoch.
  TORCH_ARG(int64_t, max_steps) = 0;
  /// An evaluation behind every so many epochs, and the last one; 0: none.
  TORCH_ARG(int64_t, test_interval) = 1;
};

/// Colossal-AI's Trainer: the loop of an engine, with hooks between its parts
/// (trainer/trainer_hook.h, hooks/).
///
///     auto [engine, train_loader] =
///         oslo::initialize(model, optimizer, criterion, loader, config);
///     oslo::Trainer trainer(engine, {std::make_shared<oslo::AccuracyHook>(),
///                                    std::make_shared<oslo::LogMetricsHook>()});
///     auto test_loader = engine.test_loader(test_data);
///     trainer.fit(train_loader, test_loader, oslo::FitOptions().epochs(3));
///     double accuracy = trainer.evaluate(test_loader).at("accuracy");
///
/// Batches are run by a PipelineSchedule, on one stage and on several, with the micro-batches of
/// the config. The means "train/loss" and "test/loss" are over all rows, or over what the criterion
/// counts, of all batches and data ranks: those of one device on any number of ranks, unequal
/// batches included.
///
/// All methods are to be called on every rank. The engine must outlive it.
template <typename Model, typename Criterion>
class Trainer {
 public:
  explicit Trainer(Engine<Model, Criterion>& engine, TrainerHooks hooks = {})
      : Trainer(engine, PipelineSchedule(engine), std::move(hooks)) {}
  /// With a schedule of the program's.
  Trainer(Engine<Model, Criterion>& engine, PipelineSchedule schedule, TrainerHooks hooks)
      : engine_(engine),
        schedule_(std::move(schedule)),
        core_(engine.parallel(), engine.optimizer(), std::move(hooks)) {}

  /// Trains until the last epoch, the last step, or a hook ends it.
  template <typename TrainLoader>
  void fit(TrainLoader& train_loader, const FitOptions& options = {}) {
    run(train_loader, options, [](bool) {});
  }
  /// The same, with evaluations between epochs.
  template <typename TrainLoader, typename TestLoader>
  requires(!std::is_same_v<std::remove_cv_t<TestLoader>, FitOptions>) void fit(
      TrainLoader& train_loader, TestLoader& test_loader, const FitOptions& options = {}) {
    run(train_loader, options, [&](bool last) {
      const int64_t each = options.test_interval();
      if (each > 0 && (last || (training().epoch + 1) % each == 0)) evaluate(test_loader);
    });
  }

  /// The means over all batches of a loader, without gradients, the same on every rank: "loss", and
  /// what the hooks add. The model is in evaluation mode meanwhile.
  template <typename TestLoader>
  Metrics evaluate(TestLoader& test_loader) {
    const bool trained = engine_.parallel().module()->is_training();
    engine_.eval();
    core_.test_begins();
    const auto options = StepOptions().forward_only(true).return_outputs(core_.reads_outputs());
    for (auto at = test_loader.begin(); at != test_loader.end();) {
      TrainedBatch batch = sizes_of(*at);
      put(schedule_.forward_backward_step(engine_, at, options), batch);
      core_.test_batch_ends(batch);
    }
    const Metrics metrics = core_.test_ends();
    if (trained) engine_.train();
    return metrics;
  }

  /// Goes on from what a CheckpointHook saved, or the newest of its series: before fit().
  void resume(const std::string& folder) { core_.resume(folder); }

  const Training& training() { return core_.training(); }

 private:
  template <typename TrainLoader, typename Test>
  void run(TrainLoader& loader, const FitOptions& options, const Test& test) {
    core_.train_begins(options.epochs(), options.max_steps());
    while (core_.goes_on()) {
      engine_.train();
      core_.epoch_begins(batches_of(loader));
      const auto keeps = StepOptions().return_outputs(core_.reads_outputs());
      for (auto at = loader.begin(); at != loader.end() && core_.goes_on();) {
        TrainedBatch batch = sizes_of(*at);
        engine_.zero_grad();
        put(schedule_.forward_backward_step(engine_, at, keeps), batch);
        batch.stepped = engine_.step();
        core_.batch_ends(batch);
      }
      core_.epoch_ends();
      const Training& now = training();
      const bool last =
          now.epoch + 1 == now.epochs || (now.max_steps > 0 && now.steps >= now.max_steps);
      test(last);
      core_.epoch_is_over();
    }
    core_.train_ends();
  }

  template <typename Loader>
  static int64_t batches_of(const Loader& loader) {
    if constexpr (requires { loader.size(); }) return static_cast<int64_t>(loader.size());
    return -1;
  }

  template <typename Batch>
  static TrainedBatch sizes_of(const Batch& batch) {
    const auto tensors = StepBatch<std::remove_cvref_t<Batch>>::tensors(batch);
    TrainedBatch sizes;
    sizes.rows = tensors.front().size(0);
    sizes.labels = tensors.back().numel();
    return sizes;
  }

  void put(const EngineStep& step, TrainedBatch& batch) {
    batch.output = step.output;
    batch.label = step.label;
    batch.loss = step.loss;
    batch.weight = engine_.core().last_counted().value_or(static_cast<double>(batch.rows));
  }

  Engine<Model, Criterion>& engine_;
  PipelineSchedule schedule_;
  TrainerCore core_;
};

template <typename Model, typename Criterion>
Trainer(Engine<Model, Criterion>&, TrainerHooks) -> Trainer<Model, Criterion>;

}  // namespace oslo
