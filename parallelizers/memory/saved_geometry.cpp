#include "parallelizers/memory/saved_geometry.h"

#include <c10/core/Allocator.h>

#include <utility>

namespace oslo {
namespace {

constexpr const char* kNoContent =
    "checkpoint: an element was read of a tensor that no operator needs and that was therefore not "
    "computed again";

c10::Storage no_memory(c10::Device device) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device),
                       /*allocator=*/nullptr, /*resizable=*/false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(kNoContent);
  return storage;
}

}  // namespace

SavedGeometry geometry_of(const at::Tensor& plain) {
  return {c10::DimVector(plain.sizes()),
          c10::DimVector(plain.strides()),
          plain.storage_offset(),
          plain.key_set(),
          plain.dtype(),
          plain.device()};
}

at::Tensor lay(const SavedGeometry& geometry, c10::Storage memory) {
  if (!memory) memory = no_memory(*geometry.device);
  auto impl =
      c10::make_intrusive<c10::TensorImpl>(std::move(memory), geometry.keys, geometry.dtype);
  impl->set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.offset);
  return at::Tensor(std::move(impl));
}

bool is_content_missing(const c10::Error& error) {
  return error.msg() == kNoContent;
}

}  // namespace oslo
