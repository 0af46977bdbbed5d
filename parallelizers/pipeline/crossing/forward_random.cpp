#include "parallelizers/pipeline/crossing/forward_random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <utility>

#include "parallelizers/pipeline/crossing/generator_state.h"

namespace oslo {

ForwardRandom::ForwardRandom(std::vector<at::Generator> generators, uint64_t seed, int micro_batch)
    : generators_(std::move(generators)) {
  for (at::Generator& generator : generators_) {
    at::Generator own = generator.clone();
    // The engine's own mixing makes unrelated streams of neighbouring seeds.
    own.set_current_seed(seed + static_cast<uint64_t>(micro_batch));
    states_.push_back(own.get_state());
  }
}

uint64_t ForwardRandom::draw_seed(const std::vector<at::Generator>& generators) {
  at::Generator generator = generators.front();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

ForwardRandom::Scope::Scope(ForwardRandom* stream) : stream_(stream) {
  if (stream == nullptr) return;
  for (size_t i = 0; i < stream->generators_.size(); ++i) {
    outer_.push_back(state_of(stream->generators_[i]));
    set_state(stream->generators_[i], stream->states_[i]);
  }
}

ForwardRandom::Scope::~Scope() {
  if (stream_ == nullptr) return;
  for (size_t i = 0; i < outer_.size(); ++i) {
    stream_->states_[i] = state_of(stream_->generators_[i]);
    set_state(stream_->generators_[i], outer_[i]);
  }
}

}  // namespace oslo
