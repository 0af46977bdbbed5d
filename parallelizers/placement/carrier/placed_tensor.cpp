#include "parallelizers/placement/carrier/placed_tensor.h"

#include <ATen/ATen.h>

#include <numeric>
#include <optional>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/data_asked_for.h"

namespace oslo {
namespace {

/// What the tensor says it is on: elsewhere the model's device, though a shape is nowhere.
at::Device shown_device(const Value& value) {
  return value.elsewhere() ? value.layout->context()->device() : value.local.device();
}

/// The strides one device would have, in the local tensor's order: what matters is that a tensor is
/// contiguous here exactly when the local one is.
c10::SmallVector<int64_t, 6> global_strides(const at::Tensor& local, c10::IntArrayRef sizes) {
  const int64_t dims = local.dim();
  c10::SmallVector<int64_t, 6> order(dims), strides(dims, 0);
  std::iota(order.rbegin(), order.rend(), 0);
  // Of equal strides, that of a dimension of one element (or none) lies inside.
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::pair(local.stride(a), local.size(a) > 1) <
           std::pair(local.stride(b), local.size(b) > 1);
  });
  int64_t local_dense = 1, global_dense = 1;
  for (const int64_t d : order) {
    if (local.stride(d) == 0) continue;
    // A gap in the local strides (a slice) stays a gap of the same proportion.
    strides[d] = std::max(global_dense, global_dense * local.stride(d) / local_dense);
    local_dense = local.stride(d) * std::max<int64_t>(1, local.size(d));
    global_dense = strides[d] * sizes[d];
  }
  return strides;
}

}  // namespace

void make_told(Value& value) {
  if (!value.layout->tells_strides()) value.local = value.local.contiguous();
}

PlacedTensorImpl::PlacedTensorImpl(Value value, std::shared_ptr<const GatheredView> view)
    : c10::TensorImpl(c10::DispatchKeySet(kPlacedKey), value.local.dtype(), shown_device(value)),
      value_(std::move(value)),
      gathered_view_(std::move(view)) {
  value_.use = {};  // a call's, which ends
  value_.strides.clear();
  keep_only_our_key();
  set_global_geometry();
}

PlacedTensorImpl::PlacedTensorImpl(Value value, const PlacedTensorImpl& like)
    : c10::TensorImpl(c10::DispatchKeySet(kPlacedKey), value.local.dtype(), shown_device(value)),
      value_(std::move(value)) {
  value_.use = {};
  value_.strides.clear();
  keep_only_our_key();
  const at::Tensor& local = value_.local;
  const bool same_shape = local.sizes() == like.value_.local.sizes();
  if (same_shape && like.packed_ && local.is_contiguous()) {
    copy_packed_geometry(like);
  } else if (same_shape && like.is_contiguous() && local.is_contiguous()) {
    pack(like.sizes());
  } else if (same_shape && !value_.layout->tells_strides() && like.is_non_overlapping_and_dense()) {
    set_sizes_and_strides(like.sizes(), like.strides());
  } else {
    make_told(value_);
    set_global_geometry();
  }
}

/// Its front, if one is asked for, is made of what this leaves; there is none before.
void PlacedTensorImpl::end() const {
  auto& own = const_cast<PlacedTensorImpl*>(this)->value_;
  own = end_sum(std::move(own));
}

void PlacedTensorImpl::stride(c10::IntArrayRef strides) {
  const auto sizes = value_.sizes();
  set_sizes_and_strides(sizes, strides);
  packed_ = false;
}

void PlacedTensorImpl::keep_only_our_key() {
  // The constructor added autograd's keys. What remains of them says whether the tensor was made in
  // inference mode.
  key_set_ = key_set_ & (c10::DispatchKeySet(kPlacedKey) | kNotInference);
  set_storage_access_should_throw();
}

void PlacedTensorImpl::set_global_geometry() {
  const auto sizes = value_.sizes();
  if (value_.local.is_contiguous() || !value_.layout->tells_strides()) {
    pack(sizes);
  } else {
    set_sizes_and_strides(sizes, global_strides(value_.local, sizes));
  }
}

void PlacedTensorImpl::pack(c10::IntArrayRef sizes) {
  set_sizes_contiguous(sizes);
  packed_ = true;
}

void PlacedTensorImpl::copy_packed_geometry(const PlacedTensorImpl& like) {
  sizes_and_strides_ = like.sizes_and_strides_;
  numel_ = like.numel_;
  is_contiguous_ = like.is_contiguous_;
  is_channels_last_ = like.is_channels_last_;
  is_channels_last_contiguous_ = like.is_channels_last_contiguous_;
  is_channels_last_3d_ = like.is_channels_last_3d_;
  is_channels_last_3d_contiguous_ = like.is_channels_last_3d_contiguous_;
  is_non_overlapping_and_dense_ = like.is_non_overlapping_and_dense_;
  packed_ = true;
}

const char* PlacedTensorImpl::tensorimpl_type_name() const {
  return "a placed tensor: its elements are cut over ranks; take oslo::full_tensor(t) or "
         "oslo::local_tensor(t)";
}

c10::intrusive_ptr<c10::TensorImpl> PlacedTensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version, bool allow_metadata_change) const {
  Value value = this->value();
  {
    const BelowDoor below;
    value.local = value.local.detach();
  }
  auto copy = c10::make_intrusive<PlacedTensorImpl>(std::move(value), gathered_view_);
  copy->detached_ = true;
  copy->set_sizes_and_strides(sizes(), strides());
  copy->packed_ = packed_;
  if (!copy->is_inference()) copy->set_version_counter(version);
  copy->set_allow_tensor_metadata_change(allow_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> PlacedTensorImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version, bool allow_metadata_change) const {
  return shallow_copy_and_detach(static_cast<const c10::VariableVersion&>(version),
                                 allow_metadata_change);
}

void PlacedTensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>&) {
  fail("set_data on a placed tensor: its elements are cut over ranks; use copy_ instead");
}

bool PlacedTensorImpl::has_storage() const {
  if (value_.elsewhere()) value_.layout->context()->check_not_ended();
  // LibTorch asks before every access to the data and then throws its own words, unless given ours:
  // here, so that the many tensors that are never asked do not carry them.
  const_cast<PlacedTensorImpl*>(this)->release_storage_and_set_meta_custom_data_ptr_error_msg_(
      value_.layout && value_.layout->resident() ? kResidentDataAskedFor : kCutDataAskedFor);
  return false;
}

void PlacedTensorImpl::release_resources() {
  // What stays is held weakly, by a retained gradient perhaps, whose graph this may lead to.
  c10::TensorImpl::release_resources();
  value_ = {};
  gathered_view_ = nullptr;
  weight_uses_ = nullptr;
}

}  // namespace oslo
