#pragma once

#include <ATen/core/Generator.h>

#include <functional>
#include <utility>
#include <vector>

#include "parallelizers/modules/parameters_in_use.h"
#include "parallelizers/plan/dry/write_watch.h"

namespace oslo {

/// The default generators of the CPU and of the devices that the model is on.
std::vector<at::Generator> default_generators(const ModelView& model);

/// Runs a forward on example data without leaving a trace: no gradients, and the states of the
/// default generators, and the module's buffers (running statistics, caches), are as before
/// afterwards, also when it throws.
void run_example(const ModelView& model, const std::function<void()>& example);

/// The same for `initialize`, which leaves no trace in parameters, their gradients and members of
/// layers either: twice where the forward writes to any, to tell `writes` what it writes once, and
/// with gradients recorded where it throws without (it may ask for some). Returns the members
/// that it assigned something computed to. Throws what `writes.check()` throws.
std::vector<MemberKeeper::Computed> try_example(const ModelView& model,
                                                const std::function<void()>& example,
                                                FirstWrites& writes);

}  // namespace oslo
