#include "mpu/grid/random_states.h"

#include <mutex>

namespace oslo {

RandomStates::RandomStates(const std::vector<at::Generator>& generators) {
  for (at::Generator generator : generators) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

RandomStates::~RandomStates() {
  for (auto& [generator, state] : states_) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace oslo
