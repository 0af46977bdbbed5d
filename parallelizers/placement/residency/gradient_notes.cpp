#include "parallelizers/placement/residency/gradient_notes.h"

#include "parallelizers/libtorch/tag_end.h"

namespace oslo {

void GradientNotes::note(const at::Tensor& value) {
  std::erase_if(noted_, [](const auto& entry) { return entry.second.expired(); });
  // Or its mark, which leads to these notes, would live as long as they do.
  if (!value.is_inference()) end_tag_with(value);
  noted_.insert_or_assign(value.unsafeGetTensorImpl(),
                          c10::weak_intrusive_ptr<c10::TensorImpl>(value.getIntrusivePtr()));
}

bool GradientNotes::knows(const at::Tensor& value) const {
  const auto found = noted_.find(value.unsafeGetTensorImpl());
  return found != noted_.end() && !found->second.expired();
}

}  // namespace oslo
