#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace oslo {

/// Where a CPU generator stands.
struct GeneratorState {
  at::mt19937 engine;
  /// The second of two normal numbers that were drawn together.
  std::optional<float> float_normal;
  std::optional<double> double_normal;
};

/// Hold the generator's mutex.
GeneratorState state_of(at::CPUGeneratorImpl& generator);
void set_state(at::CPUGeneratorImpl& generator, const GeneratorState& state);

/// A generator of its own that goes on from `state`.
at::Generator generator_at(const GeneratorState& state);

/// How many numbers of 32 bits an in-place operator ("aten::uniform_") draws for `target`; nothing
/// where that is not known: it is drawn then. As LibTorch's CPU kernels do it: one number an
/// element, two for a double; normal_ of 16 contiguous elements and more draws 16 numbers again
/// where the last 16 elements are not a block of their own (DistributionTemplates.h).
std::optional<uint64_t> numbers_drawn(const std::string& op, const at::Tensor& target);

/// Numbers of 32 bits that one element takes, where `numbers_drawn` knows them.
int64_t numbers_an_element(c10::ScalarType type);

/// normal_ computes this many elements together.
constexpr int64_t kNormalBlock = 16;

}  // namespace oslo
