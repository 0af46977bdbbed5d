#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "mpu/transport/backends/rendezvous.h"
#include "mpu/transport/backends/transport.h"

namespace oslo {

/// Makes the process group `name` of `ranks` of the world, of which this process is number `rank`,
/// over `wanted`; if that is automatic, over what OSLO_BACKEND says, as `parse_transport` reads it.
/// Collective over the members (except in fake worlds): they must want the same, and compare their
/// hosts. A group of one rank reaches nobody.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Rendezvous& rendezvous,
                                                          const std::string& name, int rank,
                                                          std::vector<int> ranks,
                                                          Transport wanted = Transport::automatic);

}  // namespace oslo
