#pragma once

#include "mpu/transport/counted_process_group.h"
#include "mpu/transport/rendezvous.h"

namespace oslo {

/// The only place that names NCCL; compiled in CUDA builds. Sets `group`'s backend for CUDA
/// tensors, beside Gloo's for CPU tensors. The communicator is made on first use, and so
/// is another one for messages to lower ranks.
void add_nccl_backend(CountedProcessGroup& group, const Rendezvous& rendezvous,
                      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size);

}  // namespace oslo
