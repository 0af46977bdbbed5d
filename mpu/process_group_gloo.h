#pragma once

#include "mpu/process_group.h"

namespace oslo {

/// The only place that names Gloo. Sets `group`'s backend for CPU tensors.
void add_gloo_backend(c10d::ProcessGroup& group, Rendezvous& rendezvous,
                      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size);

}  // namespace oslo
