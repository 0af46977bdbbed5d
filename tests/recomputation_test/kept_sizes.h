#pragma once

#include <string>

#include "tests/recomputation_test/gpt2.h"
#include "tests/support/counted_memory.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo::test {

/// What a GPT-2 of four layers, of 48 channels, holds between forward and backward on 512 words,
/// its segments tried before: in sizes of a layer's input in fp32.
inline double kept_sizes(const std::string& config, const World& world) {
  models::GPT2Options options = small_gpt2(4);
  options.hidden = 48;
  const at::Tensor tokens = torch::arange(512).remainder(19).view({16, 32});
  auto model = parity::make_seeded(3, [&] { return models::GPT2(options); });
  const auto parallel = initialize(model, Config::parse(config), in(world));
  loss_of_tokens(model->forward(tokens), tokens).backward();
  model->zero_grad();
  const CountedMemory memory;
  const at::Tensor loss = loss_of_tokens(model->forward(tokens), tokens);
  return static_cast<double>(memory.bytes()) / (512 * 48 * 4);
}

}  // namespace oslo::test
