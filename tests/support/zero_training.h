#pragma once

#include <string>
#include <vector>

#include "tests/support/catalogue_entry.h"

// Models whose states, gradients or weights two data ranks share out (ZeRO 1 to 3), beside two
// replicas in plain LibTorch that know nothing of this library: losses, gradients of every step and
// weights bit for bit, and what moves call by call and byte by byte.
namespace catalogue {

/// Ten steps of Adam. `unread`: layers of which backward reads no weight, as nobody asks for the
/// gradient of their input, so that stage 3 gathers them in forward alone. `fixed_size`: each
/// replica has a whole batch of its own. Stage 3 is run with one copy of the weights a host, too.
void expect_zero(const Entry& entry, int stage, const std::vector<std::string>& unread,
                 bool fixed_size);

}  // namespace catalogue
