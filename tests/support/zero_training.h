#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/support/catalogue_entry.h"

// Models whose states, gradients or weights two data ranks share out (ZeRO 1 to 3), beside two
// replicas in plain LibTorch that know nothing of this library: losses, gradients of every step and
// weights bit for bit, and what moves call by call and byte by byte.
namespace catalogue {

/// What an entry asks for.
struct ZeroTraining {
  /// Layers of which backward reads no weight, as nobody asks for the gradient of their input:
  /// stage 3 gathers them in forward alone.
  std::vector<std::string> unread = {};
  /// Layers that forward, and so backward, comes back to behind another one, for which it lets go
  /// of their weights.
  std::vector<std::string> again = {};
  bool fixed_size = false;  ///< each replica has a whole batch of its own
  /// Of all floating-point numbers; none: they are as they are made.
  std::optional<torch::Dtype> dtype = torch::kFloat;
};

/// Ten steps of Adam. Stage 3 is run with one copy of the weights a host, too.
void expect_zero(const Entry& entry, int stage, const ZeroTraining& how);

}  // namespace catalogue
