#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace oslo::test {

/// A device whose streams do nothing until the host waits for them, and then only what that needs:
/// what is not ordered before something that is waited for has not happened. A GPU is seldom that
/// late, so that a forgotten event passes there. It takes LibTorch's place for other people's
/// devices (PrivateUse1) and has memory, copies, streams and events; what computes on it waits for
/// its stream (late_operators.h). Copies from and to the host's memory are late where that is
/// pinned, as on a GPU.
inline const c10::Device kLazy(c10::kPrivateUse1, 0);

/// Copies that have been asked for and are not done, on all streams.
size_t undone_copies();

/// The host waits for what this thread's current stream holds.
void finish_current_stream();

/// The host waits for all streams.
void finish_all_streams();

/// Bytes of the device's memory that somebody holds, copies that are not done among them.
int64_t device_bytes();

/// Those that this thread has asked for: of its rank, where ranks are threads.
int64_t device_bytes_of_this_thread();

/// On how many streams the allocator has been told that the tensor's memory is used.
size_t streams_told(const at::Tensor& tensor);

}  // namespace oslo::test
