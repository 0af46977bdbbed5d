#pragma once

#include <ATen/core/Tensor.h>

#include "mpu/group.h"

namespace oslo {

/// Sends `tensor` (contiguous) to rank `to` of the group. Returns at once; the tensor must live,
/// and stay as it is, until the work returned has been waited for. `tag` tells apart what two ranks
/// have under way between them at a time.
c10::intrusive_ptr<c10d::Work> start_send(Group& group, const at::Tensor& tensor, int to, int tag);

/// Overwrites `tensor` (contiguous) with what rank `from` of the group sends; waits for it.
void receive(Group& group, at::Tensor& tensor, int from, int tag);

}  // namespace oslo
