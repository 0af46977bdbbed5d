#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "mpu/group.h"
#include "mpu/mesh.h"
#include "mpu/random_streams.h"
#include "mpu/rank_grid.h"
#include "mpu/world.h"

namespace oslo {

/// Sizes of the mesh. The data size is world / (tensor x pipeline) unless given.
class MpuOptions {
 public:
  MpuOptions& tensor_parallel_size(int size) { return grid_.tensor = size, *this; }
  MpuOptions& pipeline_parallel_size(int size) { return grid_.pipeline = size, *this; }
  MpuOptions& data_parallel_size(int size) { return grid_.data = size, given_data_ = true, *this; }
  MpuOptions& rank_order(RankOrder order) { return grid_.order = order, *this; }
  /// What carries the groups' collectives.
  MpuOptions& backend(Transport transport) { return backend_ = transport, *this; }
  /// Seed of the random streams.
  MpuOptions& seed(uint64_t seed) { return seed_ = seed, *this; }

  /// How operators on cut values draw random numbers.
  MpuOptions& random_mode(RandomMode mode) { return random_mode_ = mode, *this; }

  /// The checked sizes for `world` ranks.
  RankGrid grid(int world) const;
  uint64_t seed() const { return seed_; }
  RandomMode random_mode() const { return random_mode_; }
  Transport backend() const { return backend_; }

 private:
  RankGrid grid_;
  bool given_data_ = false;
  uint64_t seed_ = 0;
  RandomMode random_mode_ = RandomMode::like_one_device;
  Transport backend_ = Transport::automatic;
};

/// The model parallel unit (Megatron-LM, OSLO): the world's ranks as a grid of data, tensor and
/// pipeline groups. Making one is collective over the world; it is a cheap handle afterwards.
/// `model` groups hold one copy of the model: tensor x pipeline ranks.
class MPU {
 public:
  /// Throws on every rank, before any of them waits for another, when the sizes do not fit.
  explicit MPU(World world, const MpuOptions& options = {});

  const World& world() const;
  const RankGrid& grid() const;
  RandomStreams& random() const;

  using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Ranks = std::vector<int>;

  ProcessGroupPtr get_data_parallel_group() const { return data_group()->process_group(); }
  int get_data_parallel_rank() const { return data_group()->rank(); }
  int get_data_parallel_world_size() const { return data_group()->size(); }
  Ranks get_data_parallel_ranks() const { return data_group()->ranks(); }
  std::vector<Ranks> get_data_parallel_groups() const { return grid().groups("data"); }

  ProcessGroupPtr get_tensor_parallel_group() const { return tensor_group()->process_group(); }
  int get_tensor_parallel_rank() const { return tensor_group()->rank(); }
  int get_tensor_parallel_world_size() const { return tensor_group()->size(); }
  Ranks get_tensor_parallel_ranks() const { return tensor_group()->ranks(); }
  std::vector<Ranks> get_tensor_parallel_groups() const { return grid().groups("tensor"); }

  ProcessGroupPtr get_pipeline_parallel_group() const { return pipeline_group()->process_group(); }
  int get_pipeline_parallel_rank() const { return pipeline_group()->rank(); }
  int get_pipeline_parallel_world_size() const { return pipeline_group()->size(); }
  Ranks get_pipeline_parallel_ranks() const { return pipeline_group()->ranks(); }
  std::vector<Ranks> get_pipeline_parallel_groups() const { return grid().groups("pipeline"); }

  ProcessGroupPtr get_model_parallel_group() const { return model_group()->process_group(); }
  int get_model_parallel_rank() const { return model_group()->rank(); }
  int get_model_parallel_world_size() const { return model_group()->size(); }
  Ranks get_model_parallel_ranks() const { return model_group()->ranks(); }
  std::vector<Ranks> get_model_parallel_groups() const { return grid().groups("model"); }

  bool is_pipeline_first_stage() const { return get_pipeline_parallel_rank() == 0; }
  bool is_pipeline_last_stage() const {
    return get_pipeline_parallel_rank() == get_pipeline_parallel_world_size() - 1;
  }

  /// Differentiable collectives over the tensor group (Megatron's f, g and their companions).
  /// Sizes along the last dimension may be odd; ranks may hold different amounts.
  /// Forward identity, backward all-reduce.
  at::Tensor broadcast(const at::Tensor& tensor) const;
  /// Forward all-reduce (sum), backward identity.
  at::Tensor reduce(const at::Tensor& tensor) const;
  /// Forward keeps this rank's balanced part of the last dimension, backward gathers.
  at::Tensor scatter(const at::Tensor& tensor) const;
  /// Forward joins all ranks' parts along the last dimension, backward keeps this rank's part.
  at::Tensor gather(const at::Tensor& tensor) const;

  /// The axes over which tensor parallelism cuts values.
  const MeshPtr& tensor_mesh() const;

  /// The groups with their ledgers.
  const std::shared_ptr<Group>& data_group() const;
  const std::shared_ptr<Group>& tensor_group() const;
  const std::shared_ptr<Group>& pipeline_group() const;
  const std::shared_ptr<Group>& model_group() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace oslo
