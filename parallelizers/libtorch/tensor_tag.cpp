#include "parallelizers/libtorch/tensor_tag.h"

#include <algorithm>
#include <typeinfo>
#include <utility>

#include "mpu/base/error.h"

namespace oslo {
namespace {

const TensorTag* tag_of(const c10::TensorImpl& impl) {
  // LibTorch's getter is not const; it reads.
  const c10::BackendMeta* const entry = const_cast<c10::TensorImpl&>(impl).get_backend_meta();
  const bool ours = entry != nullptr && typeid(*entry) == typeid(TensorTag);
  return ours ? static_cast<const TensorTag*>(entry) : nullptr;
}

}  // namespace

bool TensorTag::empty() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return !part; });
}

const TagPart* tag_part(const c10::TensorImpl& impl, TagKind kind) {
  const TensorTag* const tag = tag_of(impl);
  return tag != nullptr ? tag->part(kind) : nullptr;
}

void set_tag_part(c10::TensorImpl& impl, TagKind kind, c10::intrusive_ptr<TagPart> part) {
  const TensorTag* const before = tag_of(impl);
  OSLO_CHECK(before != nullptr || impl.get_backend_meta() == nullptr, "a tensor of shape ",
             impl.sizes(),
             " carries the data of another out-of-tree backend, where oslo_cpp keeps which part of "
             "it this rank has: a process can use one of the two");
  // A new one: copies of the tensor share the one before.
  auto tag = c10::make_intrusive<TensorTag>();
  if (before != nullptr) tag->parts_ = before->parts_;
  tag->parts_[static_cast<size_t>(kind)] = std::move(part);
  impl.set_backend_meta(tag->empty() ? nullptr : std::move(tag));
}

void copy_tag(const c10::TensorImpl& from, c10::TensorImpl& to) {
  to.set_backend_meta(const_cast<c10::TensorImpl&>(from).get_backend_meta_intrusive_ptr());
}

void clear_tag(c10::TensorImpl& impl) {
  impl.set_backend_meta(nullptr);
}

int64_t others_with_tag_of(const c10::TensorImpl& impl) {
  // One is the tensor's, one the pointer that asks.
  const auto tag = const_cast<c10::TensorImpl&>(impl).get_backend_meta_intrusive_ptr();
  return static_cast<int64_t>(tag.use_count()) - 2;
}

}  // namespace oslo
