#pragma once

#include <c10/util/FunctionRef.h>

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// Whether the call returns, or is as large as, elements say (`item()`, `nonzero`).
bool reads(const Call& call);

/// Whether the call reads elements of a value that only some pipeline stages hold (`item()`,
/// `nonzero`), and the thread's carrier lets all ranks know what was read. The same on all ranks.
bool reads_for_all(const Call& call);

/// Runs the rule of such a call where the value is, and hands what it found to everybody else.
void read_for_all(Call& call, c10::function_ref<void()> rule);

}  // namespace oslo
