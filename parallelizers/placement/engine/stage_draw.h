#pragma once

#include <c10/util/FunctionRef.h>

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// Throws, on every rank of a step in which ranks have several stages, for a call that draws from a
/// generator of the program's own: micro-batches come to it in another order on each rank.
void refuse_own_generator(const Call& call);

/// Whether the call draws as many random numbers as elements say of a value that only some pipeline
/// stages hold (`poisson`, `rrelu`, `multinomial`). The same on all ranks.
bool draws_for_all(const Call& call);

/// Runs the rule of such a call, and brings everybody's generator to where that of the stage is
/// which has the elements: what is drawn next is what one device would draw. One message to each
/// rank of another stage, which waits for it, in a step or in a bare forward.
void draw_for_all(Call& call, c10::function_ref<void()> rule);

}  // namespace oslo
