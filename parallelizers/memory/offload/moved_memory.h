#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>

namespace oslo::offload {

/// Memory of a device that saved tensors lie in: there, on the host, or there again. Copies go on
/// one stream, one after the other, so that what comes back was out before. Not for several threads
/// at once.
class MovedMemory {
 public:
  MovedMemory(const at::Tensor& saved, size_t place, c10::Stream copies);

  size_t place() const { return place_; }  ///< among those of its store
  int64_t bytes() const { return static_cast<int64_t>(bytes_); }
  /// Whether it is the memory that `saved` lies in, with the same content.
  bool is_of(const at::Tensor& saved) const;

  void saved_once_more() { ++asked_for_; }
  bool will_be_asked_for() const { return asked_for_ > 0; }
  /// To the host. The device's memory is let go; its allocator knows that a copy reads it still.
  void move();
  /// Back to the device, where it is not; the current stream goes on meanwhile.
  void fetch();
  /// On the device, for the current stream. Lets go of it with the last that asks.
  c10::Storage take();

 private:
  at::Tensor all_bytes(const c10::Storage& memory) const;
  void use_on(const c10::Stream& stream) const;

  const size_t place_, bytes_;
  const c10::Device device_;
  const c10::Stream copies_;
  const c10::DispatchKeySet keys_;
  const uint32_t version_;  ///< of the first that was saved
  c10::Storage memory_;
  c10::weak_intrusive_ptr<c10::StorageImpl> last_;  ///< where somebody may still hold it
  at::Tensor host_;                                 ///< its bytes, once it has been moved
  std::optional<c10::Event> came_;                  ///< of the copy back
  int64_t asked_for_ = 0;                           ///< so often it was saved and not yet taken
};

}  // namespace oslo::offload
