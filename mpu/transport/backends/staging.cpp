#include "mpu/transport/backends/staging.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace oslo {
namespace {

at::Tensor host_like(const at::Tensor& tensor) {
  // Below autograd, here and in the copies: they are no operators of the user's, and count no
  // version, as NCCL's writes do not.
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::empty(
      tensor.sizes(),
      at::TensorOptions(tensor.scalar_type()).device(at::kCPU).pinned_memory(!tensor.is_cpu()));
}

void copy_into(const at::Tensor& into, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor(into).copy_(from, /*non_blocking=*/true);
}

}  // namespace

Staging::Staging(c10::Device device) : device_(device) {
  if (device_.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  out_ = guard.getStreamFromGlobalPool(device_);
  in_ = guard.getStreamFromGlobalPool(device_);
  c10::Event ready(device_.type());
  ready.record(guard.getStream(device_));
  ready.block(*out_);
  // What is copied in may lie where earlier work still reads.
  ready.block(*in_);
}

/// The allocator must not give the memory to others before `stream` is done with it.
void Staging::use_on(const at::Tensor& tensor, const c10::Stream& stream) const {
  c10::impl::VirtualGuardImpl(device_.type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

Staging::Copy Staging::copy_out(const at::Tensor& tensor) const {
  Copy staged = room_for(tensor);
  if (!out_) {
    copy_into(staged.host, tensor);
    return staged;
  }
  const c10::StreamGuard guard(*out_);
  copy_into(staged.host, tensor);
  use_on(tensor, *out_);
  staged.out.emplace(device_.type());
  staged.out->record(*out_);
  return staged;
}

Staging::Copy Staging::room_for(const at::Tensor& tensor) const {
  return {tensor, host_like(tensor), std::nullopt};
}

void Staging::wait_out(const Copy& copy) {
  if (copy.out) copy.out->synchronize();
}

void Staging::make_current() const {
  if (in_) c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
}

void Staging::copy_in(const Copy& staged) const {
  if (!in_) return copy_into(staged.device, staged.host);
  const c10::StreamGuard guard(*in_);
  copy_into(staged.device, staged.host);
  use_on(staged.device, *in_);
}

c10::intrusive_ptr<c10::ivalue::Future> Staging::future() const {
  std::vector<c10::Device> devices;
  if (in_) devices.push_back(device_);
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
}

void Staging::complete(c10::ivalue::Future& future, const std::vector<at::Tensor>& results) const {
  if (!in_) return future.markCompleted(c10::IValue(results));
  // It records an event on the current stream, which is what is waited for.
  const c10::StreamGuard guard(*in_);
  future.markCompleted(c10::IValue(results));
}

}  // namespace oslo
