#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace oslo {

/// Copies between a device and the host's pinned memory beside what the device computes. Two
/// streams of the device's pool, one each way, both behind what its current stream holds when this
/// is made. On the CPU, which has no streams, every copy is done when its call returns. Made by one
/// thread, the rest called by another.
class Staging {
 public:
  explicit Staging(c10::Device device);

  /// A tensor's memory on the host. `wait_out` first where it was copied out.
  struct Copy {
    at::Tensor device;
    at::Tensor host;
    std::optional<c10::Event> out;  ///< when the host has it
  };

  /// Starts to copy `tensor` out.
  Copy copy_out(const at::Tensor& tensor) const;
  /// Room on the host for what is to be copied into `tensor`.
  Copy room_for(const at::Tensor& tensor) const;
  static void wait_out(const Copy& copy);
  /// Makes the device the calling thread's, which stays. An event that ends makes its own device
  /// current and then the one from before: that would wake a device that this rank does not use.
  void make_current() const;
  /// Starts to copy the host's content in.
  void copy_in(const Copy& copy) const;

  /// A future whose `wait` has the then current stream wait for `copy_in`s: complete it by
  /// `complete`.
  c10::intrusive_ptr<c10::ivalue::Future> future() const;
  void complete(c10::ivalue::Future& future, const std::vector<at::Tensor>& results) const;

 private:
  void use_on(const at::Tensor& tensor, const c10::Stream& stream) const;

  c10::Device device_;
  std::optional<c10::Stream> out_, in_;  ///< none on the CPU
};

}  // namespace oslo
