#include "parallelizers/placement/layout/context.h"

#include <string>
#include <utility>

#include "mpu/base/error.h"

namespace oslo {

std::shared_ptr<ModelContext> context_of(const MeshPtr& mesh) {
  // The mesh owns it, so that a pointer to it keeps the mesh and its groups alive.
  return {mesh, &mesh->companion().get<ModelContext>(*mesh)};
}

void ModelContext::set_residence(std::shared_ptr<Residence> residence,
                                 std::shared_ptr<Residence> in_step) {
  between_steps_ = std::move(residence);
  step_ = std::move(in_step);
  residence_ = between_steps_.get();
}

const StageRanks& ModelContext::stage_ranks() const {
  static const StageRanks one;
  return residence() == nullptr ? one : residence()->ranks();
}

std::shared_ptr<Group> ModelContext::pipeline() const {
  return residence() == nullptr ? nullptr : residence()->pipeline();
}

at::Device ModelContext::device() const {
  return residence() == nullptr ? at::Device(at::kCPU) : residence()->device();
}

ContentProvider* ModelContext::imagined() const {
  return residence() == nullptr ? nullptr : residence()->imagined();
}

void ModelContext::check_not_ended_there() const {
  const std::string why = residence()->ended();
  OSLO_CHECK(why.empty(), why);
}

bool ModelContext::begin_step() const {
  if (in_step_.exchange(true)) return false;
  if (step_) residence_ = step_.get();
  return true;
}

void ModelContext::end_step() const {
  residence_ = between_steps_.get();
  in_step_ = false;
}

bool over_same_ranks(const ModelContext& a, const ModelContext& b) {
  const Mesh &first = a.mesh(), &second = b.mesh();
  const Residence *const here = a.residence(), *const there = b.residence();
  if ((here == nullptr) != (there == nullptr) || first.axes() != second.axes()) return false;
  if (here != nullptr) {
    if (here->ranks() != there->ranks()) return false;
    if (!here->ended().empty() || !there->ended().empty()) return false;
  }
  for (int axis = 0; axis < first.axes(); ++axis) {
    if (first.axis(axis)->ranks() != second.axis(axis)->ranks()) return false;
  }
  return true;
}

}  // namespace oslo
