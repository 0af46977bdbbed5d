#pragma once

#include <c10/core/TensorImpl.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace oslo {

/// What one of the library's subjects remembers of a tensor. Immutable once it is set, since copies
/// of the tensor share it.
struct TagPart : c10::intrusive_ptr_target {};

/// The subjects.
enum class TagKind : uint8_t {
  mark,         ///< the tensor is this rank's part of something larger (placement/carrier/mark.h)
  initialized,  ///< `initialize` has had the parameter, which is whole (oslo_cpp/model/)
  computed,     ///< forward computes what stands in the parameter's place (modules/model_view.h)
};

/// The library's entry in the slot of a tensor's implementation that LibTorch keeps for out-of-tree
/// backends, and the only thing that the library puts there. There is one slot, so the subjects
/// share one entry. Operators do not see it. LibTorch hands it on where it copies the metadata of a
/// tensor (`set_data`, `detach`, `shallow_copy_from`), by `clone`.
class TensorTag final : public c10::BackendMeta {
 public:
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& self) const override {
    return self;
  }

  const TagPart* part(TagKind kind) const { return parts_[static_cast<size_t>(kind)].get(); }

 private:
  friend void set_tag_part(c10::TensorImpl& impl, TagKind kind, c10::intrusive_ptr<TagPart> part);

  bool empty() const;

  std::array<c10::intrusive_ptr<TagPart>, 3> parts_;
};

/// What a subject remembers of a tensor; null where it does not, also where another backend's entry
/// is in the slot.
const TagPart* tag_part(const c10::TensorImpl& impl, TagKind kind);

/// Lets a subject remember `part` of this tensor, and of no copy that was made before; null:
/// nothing any more. Throws where another backend's entry is in the slot.
void set_tag_part(c10::TensorImpl& impl, TagKind kind, c10::intrusive_ptr<TagPart> part);

/// All that is remembered of `from`, and nothing else, is remembered of `to`.
void copy_tag(const c10::TensorImpl& from, c10::TensorImpl& to);

/// Nothing is remembered of the tensor any more.
void clear_tag(c10::TensorImpl& impl);

/// How many other tensors share all that is remembered of this one, which is something.
int64_t others_with_tag_of(const c10::TensorImpl& impl);

}  // namespace oslo
