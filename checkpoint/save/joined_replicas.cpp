#include "checkpoint/save/joined_replicas.h"

#include <memory>
#include <utility>

#include "mpu/base/ledger.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {

bool is_over_replicas(const ModelState::Tensor& tensor) {
  return tensor.layout && tensor.layout->context()->replica_axis >= 0;
}

void join_replicas(std::vector<ModelState::Tensor>& tensors, bool keeps) {
  const RuleScope scope("save_parallelized");
  for (ModelState::Tensor& tensor : tensors) {
    if (!is_over_replicas(tensor)) continue;
    const int axis = tensor.layout->context()->replica_axis;
    at::Tensor joined = gather_axis(value_of(tensor.local), axis).local;
    if (keeps) tensor.local = std::move(joined);
    auto without = std::make_shared<Layout>(*tensor.layout);
    (*without)[axis] = {};
    tensor.layout = without->whole() ? nullptr : std::move(without);
  }
}

}  // namespace oslo
