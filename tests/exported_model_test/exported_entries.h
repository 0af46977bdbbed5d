#pragma once

#include "tests/exported_model_test/exported_entry.h"

// The programs that the repository holds.
namespace catalogue {

/// Its program has numbers in double, which is what comes out.
inline Entry mlp() {
  const auto loss = [](const torch::Tensor& output, const torch::Tensor& target) {
    return at::mse_loss(output, target.to(output.scalar_type()));
  };
  return oslo::test::exported_entry("mlp", loss, {"drop"});
}
inline Entry conv() {
  return oslo::test::exported_entry("conv", oslo::test::cross_entropy);
}
inline Entry twice() {
  return oslo::test::exported_entry("twice", oslo::test::mean_square);
}
inline Entry gpt2() {
  return oslo::test::exported_entry("gpt2", oslo::test::cross_entropy);
}
inline Entry vit() {
  return oslo::test::exported_entry("vit", oslo::test::cross_entropy);
}
/// It drops paths, by a draw of its own.
inline Entry depth() {
  return oslo::test::exported_entry("depth", oslo::test::cross_entropy, {"mlp.2"});
}

}  // namespace catalogue
