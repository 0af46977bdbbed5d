#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "mpu/transport/backends/rendezvous.h"

namespace oslo {

/// The only place that names Gloo.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(Rendezvous& rendezvous,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size);

}  // namespace oslo
