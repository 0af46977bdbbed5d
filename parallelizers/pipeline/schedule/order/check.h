#pragma once

#include "parallelizers/pipeline/schedule/order/graph.h"
#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo::pipeline {

/// Throws `oslo::Error` unless the lists are those of one step: every rank has `chunks` stages;
/// each stage's forward runs once for each micro-batch, on the stage's rank; and either no backward
/// runs at all, or one does for each forward, behind it, whole or as input and then weight.
void check_lists(const Schedule& schedule);

/// Throws `oslo::Error` where the ranks, following their lists, would wait for each other in a
/// circle. The message names the circle: each rank, the action it stands in and what that waits
/// for. Says nothing of time; costs about as much as the lists are long, and communicates nothing,
/// so that every rank may call it and gets the same answer.
///
/// An edge between stages never makes a circle under the lists of `make_schedule`, over however
/// many stages it goes: values reach a stage in the order of the chain, and no send waits. A read
/// can, where a rank has several stages: a forward that waits for a higher stage holds up the
/// rank's other stages, which that stage may need. naive, gpipe, 1f1b and zero_bubble with one
/// stage a rank run whatever is read.
void check_runs(const Schedule& schedule, const Graph& graph);

}  // namespace oslo::pipeline
