#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mpu/world/world.h"
#include "oslo_cpp/scaling/grad_scaler.h"
#include "oslo_cpp/step/pipeline_schedule.h"
#include "oslo_cpp/train_net/batch_sizes.h"
#include "oslo_cpp/train_net/sample_order.h"
#include "oslo_cpp/train_net/train_config.h"
#include "oslo_cpp/train_net/trained_model.h"
#include "oslo_cpp/train_net/training_log.h"
#include "oslo_cpp/training/hooks/loss_hook.h"
#include "oslo_cpp/training/rates/rate_schedule.h"
#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// LiBai's tools/train_net.py: trains the model that a config names on the grid that it asks for,
/// by iterations, and writes into "train.output_dir" what docs/train.md lists.
///
/// A step is of `global_batch_size` rows, which follow from the seed and the iteration alone, and
/// of the mean over all that the criterion counts in them. So losses and weights are those of one
/// device, but for roundings and dropout, on every grid and with any micro-batches; a run that is
/// resumed goes on with the next iteration, in any layout.
///
/// Throws `ConfigError` for what the config asks and cannot be. Collective over the world, as all
/// of its methods are.
class NetTrainer {
 public:
  NetTrainer(const TrainConfig& config, const TrainedModels& models, const World& world);
  NetTrainer(const NetTrainer&) = delete;
  NetTrainer& operator=(const NetTrainer&) = delete;

  /// Goes on from the newest checkpoint of the output folder.
  void resume();
  /// Up to `train_iter`, with the evaluations and checkpoints of the config.
  void train();
  /// The mean loss of the data of "dataloader.test"; the same on every rank.
  double evaluate();

 private:
  using Tensors = std::vector<at::Tensor>;

  std::shared_ptr<torch::nn::Module> build(const TrainedModels& models);
  void initialize_model();
  void iterate();
  void tell(const TrainedBatch& batch);
  void evaluate_if_asked();
  void save();
  int64_t rows_of_evaluation() const;
  int64_t samples_of_evaluation() const;
  void check_evaluation(int64_t samples) const;
  double test_loss(int64_t samples);
  TrainedBatch run(const Tensors& batch, bool trains);
  Tensors rows(const TrainingData& data, const std::vector<int64_t>& samples) const;
  Tensors own_rows(const TrainingData& data, const std::vector<int64_t>& samples) const;
  double rate() const;
  bool evaluates() const;

  World world_;
  TrainConfig config_;
  TrainValues values_;
  ParallelSizes sizes_;
  BatchSizes batches_;
  c10::Device device_;
  TrainedModel net_;
  std::optional<ParallelModel> parallel_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<RateSchedule> rates_;
  std::optional<PipelineSchedule> schedule_;
  std::optional<GradScaler> scaler_;
  std::optional<SampleOrder> order_;
  std::optional<Training> training_;
  std::optional<TrainingLog> log_;
  std::shared_ptr<LossHook> losses_;
  TrainerHooks hooks_;
  int64_t saved_ = 0;  ///< the iteration of the last checkpoint
};

}  // namespace oslo
