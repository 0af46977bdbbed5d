#include "parallelizers/deferred/generator_state.h"

#include <ATen/ATen.h>

namespace oslo {

GeneratorState state_of(at::CPUGeneratorImpl& generator) {
  return {generator.engine(), generator.next_float_normal_sample(),
          generator.next_double_normal_sample()};
}

void set_state(at::CPUGeneratorImpl& generator, const GeneratorState& state) {
  generator.set_engine(state.engine);
  generator.set_next_float_normal_sample(state.float_normal);
  generator.set_next_double_normal_sample(state.double_normal);
}

at::Generator generator_at(const GeneratorState& state) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
  set_state(*at::check_generator<at::CPUGeneratorImpl>(generator), state);
  return generator;
}

std::optional<uint64_t> numbers_drawn(const std::string& op, const at::Tensor& target) {
  if (!at::isFloatingType(target.scalar_type())) return std::nullopt;
  const int64_t elements = target.numel();
  const int64_t each = numbers_an_element(target.scalar_type());
  if (op == "aten::uniform_") return elements * each;
  const bool blocks = elements >= kNormalBlock && target.is_contiguous();
  if (op != "aten::normal_" || !blocks) return std::nullopt;
  return (elements + (elements % kNormalBlock == 0 ? 0 : kNormalBlock)) * each;
}

int64_t numbers_an_element(c10::ScalarType type) {
  return type == c10::ScalarType::Double ? 2 : 1;
}

}  // namespace oslo
