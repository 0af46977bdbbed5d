#pragma once

#include <ATen/core/MT19937RNGEngine.h>

#include <cstdint>

namespace oslo {

/// The engine as if it had drawn `words` numbers of 32 bits more. Costs a few milliseconds however
/// many they are: the state is multiplied by a power of the generator's matrix, as a polynomial of
/// that matrix (H. Haramoto, M. Matsumoto, T. Nishimura, F. Panneton, P. L'Ecuyer: Efficient jump
/// ahead for F2-linear random number generators, 2008).
void advance(at::mt19937& engine, uint64_t words);

}  // namespace oslo
