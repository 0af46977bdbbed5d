#pragma once

#include <ATen/core/stack.h>

#include "parallelizers/deferred/content.h"

namespace oslo {

/// Records a call of an operator that gives new tensors, or writes to deferred ones, and puts its
/// results in place of its arguments on the stack: of new tensors shapes, computed on meta tensors,
/// which also checks the arguments. The CPU generator goes on to where the call would have left it.
void record(const OperatorEntry& op, torch::jit::Stack& stack,
            const std::shared_ptr<DeferredModel>& model);

/// A word for a call's operator, arguments, operands and the state that it draws from.
uint64_t digest_of_call(const RecordedCall& call);

/// Runs a call for real, now, on the content that its operands will have. Throws `Error` naming the
/// operator where that takes more than 64 MB.
void run_now(const OperatorEntry& op, torch::jit::Stack& stack);

}  // namespace oslo
