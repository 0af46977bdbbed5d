#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "mpu/grid/mesh.h"
#include "mpu/grid/random_streams.h"
#include "mpu/grid/rank_grid.h"
#include "mpu/group/group.h"
#include "mpu/world/world.h"

namespace oslo {

/// The grid of ranks: either three sizes, of which the data size is world / (tensor x pipeline)
/// unless given, or a list of named axes.
class MpuOptions {
 public:
  MpuOptions& tensor_parallel_size(int size) { return tensor_ = size, *this; }
  MpuOptions& pipeline_parallel_size(int size) { return pipeline_ = size, *this; }
  MpuOptions& data_parallel_size(int size) { return data_ = size, *this; }
  MpuOptions& rank_order(RankOrder order) { return order_ = order, *this; }
  /// Any number of axes with all their sizes, outermost first, in place of the sizes and the rank
  /// order above (mpu/grid/rank_grid.h says what names mean):
  ///
  ///     MpuOptions().axes({{"pipeline", 2}, {"data", 2}, {"row", 2}, {"column", 2}})
  MpuOptions& axes(std::vector<Axis> axes) { return axes_ = std::move(axes), *this; }
  /// What carries the groups' collectives.
  MpuOptions& backend(Transport transport) { return backend_ = transport, *this; }
  /// Neighbours along the data axis form groups of `size`, which divides it: "data_shards" and
  /// "data_copies" are groups of an MPU then, of the ranks of one such group and of those that have
  /// one place in each.
  MpuOptions& data_shard_size(int size) { return data_shard_size_ = size, *this; }
  /// Seed of the random streams.
  MpuOptions& seed(uint64_t seed) { return seed_ = seed, *this; }

  /// How operators on cut values draw random numbers.
  MpuOptions& random_mode(RandomMode mode) { return random_mode_ = mode, *this; }

  /// The checked grid for `world` ranks.
  RankGrid grid(int world) const;
  uint64_t seed() const { return seed_; }
  RandomMode random_mode() const { return random_mode_; }
  Transport backend() const { return backend_; }
  int data_shard_size() const { return data_shard_size_; }

 private:
  std::optional<int> data_, tensor_, pipeline_;
  std::optional<RankOrder> order_;
  std::optional<std::vector<Axis>> axes_;
  int data_shard_size_ = 1;
  uint64_t seed_ = 0;
  RandomMode random_mode_ = RandomMode::like_one_device;
  Transport backend_ = Transport::automatic;
};

/// The model parallel unit (Megatron-LM, OSLO): the world's ranks as a grid of named axes, and a
/// group along each. Making one is collective over the world; it is a cheap handle afterwards,
/// which threads may share. It decides in a channel of its own (World::channel), so that threads
/// that work with one each, and save a model at a time, need not come in the same order on every
/// rank. What a name means, also of an axis that the grid lacks: mpu/grid/rank_grid.h.
class MPU {
 public:
  /// Throws on every rank, before any of them waits for another, when the sizes do not fit.
  explicit MPU(World world, const MpuOptions& options = {});

  const World& world() const;
  const RankGrid& grid() const;
  RandomStreams& random() const;

  /// The group along an axis, with its ledger; of size 1 where the grid lacks a known one. Throws,
  /// naming the axes that there are, for an unknown name.
  const std::shared_ptr<Group>& group(const std::string& axis) const;
  int rank(const std::string& axis) const { return group(axis)->rank(); }
  int size(const std::string& axis) const { return group(axis)->size(); }

  /// The groups that were made, each once.
  std::vector<std::shared_ptr<Group>> groups() const;

  /// The mesh of some axes, outermost first; the same one for the same names. Throws when two of
  /// the names share an axis ("model" and "tensor").
  MeshPtr mesh(const std::vector<std::string>& axes) const;

  /// This rank's place, the grid and its groups, for people. Long lists are abridged.
  std::string to_string() const;

  using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Ranks = std::vector<int>;

  ProcessGroupPtr get_data_parallel_group() const { return group("data")->process_group(); }
  int get_data_parallel_rank() const { return rank("data"); }
  int get_data_parallel_world_size() const { return size("data"); }
  Ranks get_data_parallel_ranks() const { return group("data")->ranks(); }
  std::vector<Ranks> get_data_parallel_groups() const { return grid().groups("data"); }

  ProcessGroupPtr get_tensor_parallel_group() const { return group("tensor")->process_group(); }
  int get_tensor_parallel_rank() const { return rank("tensor"); }
  int get_tensor_parallel_world_size() const { return size("tensor"); }
  Ranks get_tensor_parallel_ranks() const { return group("tensor")->ranks(); }
  std::vector<Ranks> get_tensor_parallel_groups() const { return grid().groups("tensor"); }

  ProcessGroupPtr get_pipeline_parallel_group() const { return group("pipeline")->process_group(); }
  int get_pipeline_parallel_rank() const { return rank("pipeline"); }
  int get_pipeline_parallel_world_size() const { return size("pipeline"); }
  Ranks get_pipeline_parallel_ranks() const { return group("pipeline")->ranks(); }
  std::vector<Ranks> get_pipeline_parallel_groups() const { return grid().groups("pipeline"); }

  ProcessGroupPtr get_model_parallel_group() const { return group("model")->process_group(); }
  int get_model_parallel_rank() const { return rank("model"); }
  int get_model_parallel_world_size() const { return size("model"); }
  Ranks get_model_parallel_ranks() const { return group("model")->ranks(); }
  std::vector<Ranks> get_model_parallel_groups() const { return grid().groups("model"); }

  ProcessGroupPtr get_sequence_parallel_group() const { return group("sequence")->process_group(); }
  int get_sequence_parallel_rank() const { return rank("sequence"); }
  int get_sequence_parallel_world_size() const { return size("sequence"); }
  Ranks get_sequence_parallel_ranks() const { return group("sequence")->ranks(); }
  std::vector<Ranks> get_sequence_parallel_groups() const { return grid().groups("sequence"); }

  ProcessGroupPtr get_tensor_row_parallel_group() const { return group("row")->process_group(); }
  int get_tensor_row_parallel_rank() const { return rank("row"); }
  int get_tensor_row_parallel_world_size() const { return size("row"); }
  Ranks get_tensor_row_parallel_ranks() const { return group("row")->ranks(); }
  std::vector<Ranks> get_tensor_row_parallel_groups() const { return grid().groups("row"); }

  ProcessGroupPtr get_tensor_column_parallel_group() const {
    return group("column")->process_group();
  }
  int get_tensor_column_parallel_rank() const { return rank("column"); }
  int get_tensor_column_parallel_world_size() const { return size("column"); }
  Ranks get_tensor_column_parallel_ranks() const { return group("column")->ranks(); }
  std::vector<Ranks> get_tensor_column_parallel_groups() const { return grid().groups("column"); }

  ProcessGroupPtr get_tensor_depth_parallel_group() const {
    return group("depth")->process_group();
  }
  int get_tensor_depth_parallel_rank() const { return rank("depth"); }
  int get_tensor_depth_parallel_world_size() const { return size("depth"); }
  Ranks get_tensor_depth_parallel_ranks() const { return group("depth")->ranks(); }
  std::vector<Ranks> get_tensor_depth_parallel_groups() const { return grid().groups("depth"); }

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

  /// The axes over which layers and their values are cut, outermost first: all but data and
  /// pipeline; the tensor axis of size 1 where there are none.
  const MeshPtr& tensor_mesh() const;

  const std::shared_ptr<Group>& data_group() const { return group("data"); }
  const std::shared_ptr<Group>& tensor_group() const { return group("tensor"); }
  const std::shared_ptr<Group>& pipeline_group() const { return group("pipeline"); }
  const std::shared_ptr<Group>& model_group() const { return group("model"); }

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace oslo
