#include "mpu/mpu.h"

#include <algorithm>

#include "mpu/collectives.h"
#include "mpu/error.h"

namespace oslo {

RankGrid MpuOptions::grid(int world) const {
  RankGrid grid = grid_;
  if (!given_data_ && grid.tensor >= 1 && grid.pipeline >= 1) {
    const int64_t model = int64_t{grid.tensor} * grid.pipeline;
    grid.data = static_cast<int>(std::max<int64_t>(1, world / model));
  }
  grid.check(world);
  return grid;
}

struct MPU::State {
  World world;
  RankGrid grid;
  std::shared_ptr<Group> data, tensor, pipeline, model;
  std::unique_ptr<RandomStreams> random;
  MeshPtr tensor_mesh;
};

MPU::MPU(World world, const MpuOptions& options) : state_(std::make_shared<State>()) {
  state_->grid = options.grid(world.size());
  state_->world = world;
  const auto make = [&](const std::string& axis) {
    for (std::vector<int>& ranks : state_->grid.groups(axis)) {
      if (std::find(ranks.begin(), ranks.end(), world.rank()) == ranks.end()) continue;
      return world.make_group(axis, std::move(ranks), options.backend());
    }
    fail("rank ", world.rank(), " is in no ", axis, " group");
  };
  state_->tensor = make("tensor");
  state_->data = make("data");
  state_->pipeline = make("pipeline");
  state_->model = make("model");
  state_->random = std::make_unique<RandomStreams>(
      options.seed(), state_->data->rank(), state_->tensor->rank(), state_->pipeline->rank());
  auto mesh = std::make_shared<Mesh>(std::vector<std::shared_ptr<Group>>{state_->tensor});
  mesh->random_mode = options.random_mode();
  mesh->sharded_generator = state_->random->sharded();
  state_->tensor_mesh = std::move(mesh);
}

const World& MPU::world() const {
  return state_->world;
}
const RankGrid& MPU::grid() const {
  return state_->grid;
}
RandomStreams& MPU::random() const {
  return *state_->random;
}
const MeshPtr& MPU::tensor_mesh() const {
  return state_->tensor_mesh;
}
const std::shared_ptr<Group>& MPU::data_group() const {
  return state_->data;
}
const std::shared_ptr<Group>& MPU::tensor_group() const {
  return state_->tensor;
}
const std::shared_ptr<Group>& MPU::pipeline_group() const {
  return state_->pipeline;
}
const std::shared_ptr<Group>& MPU::model_group() const {
  return state_->model;
}

at::Tensor MPU::broadcast(const at::Tensor& tensor) const {
  return copy_to(tensor, tensor_group());
}

at::Tensor MPU::reduce(const at::Tensor& tensor) const {
  return reduce_from(tensor, tensor_group());
}

at::Tensor MPU::scatter(const at::Tensor& tensor) const {
  OSLO_CHECK(tensor.dim() > 0, "scatter needs a dimension to cut; this tensor has none");
  const int ranks = tensor_group()->size();
  std::vector<int64_t> sizes;
  for (int r = 0; r < ranks; ++r) {
    sizes.push_back(tensor.size(-1) / ranks + (r < tensor.size(-1) % ranks));
  }
  return scatter_to(tensor, tensor_group(), tensor.dim() - 1, sizes);
}

at::Tensor MPU::gather(const at::Tensor& tensor) const {
  OSLO_CHECK(tensor.dim() > 0, "gather joins along the last dimension; this tensor has none");
  const std::vector<int64_t> sizes = tensor_group()->exchange(tensor.size(-1));
  return gather_from(tensor, tensor_group(), tensor.dim() - 1, sizes);
}

}  // namespace oslo
