#include "parallelizers/pipeline/crossing/generator_state.h"

#include <mutex>

namespace oslo {

at::Tensor state_of(const at::Generator& generator) {
  at::Generator own = generator;
  const std::lock_guard<std::mutex> lock(own.mutex());
  return own.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

void send_state(const at::Generator& generator, Group& stages, const StageRanks& ranks,
                StageSet owners, int tag) {
  const at::Tensor state = state_of(generator);
  for (int rank = 0; rank < ranks.ranks(); ++rank) {
    if (!ranks.on_rank(owners, rank)) stages.send({state}, rank, tag);
  }
}

}  // namespace oslo
