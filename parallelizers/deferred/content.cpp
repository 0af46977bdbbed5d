#include "parallelizers/deferred/content.h"

#include <ATen/ATen.h>

#include "mpu/base/digest.h"
#include "mpu/base/error.h"
#include "parallelizers/libtorch/tensor_tag.h"

namespace oslo {
namespace {

void drop(void* content) {
  delete static_cast<Content*>(content);
}

}  // namespace

at::Tensor deferred_tensor(const at::Tensor& shape, Recipe recipe,
                           std::shared_ptr<DeferredModel> model) {
  auto* content = new Content{std::move(recipe), {}, std::move(model)};
  c10::Storage storage(c10::Storage::use_byte_size_t(),
                       static_cast<int64_t>(shape.storage().nbytes()),
                       at::DataPtr(nullptr, content, &drop, at::kCPU), nullptr,
                       /*resizable=*/false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "the data of a tensor was asked for that oslo::DeferredInit made, which is a shape without "
      "content until oslo::initialize or oslo::materialize fills its model; read elements by "
      "operators (t[i].item()), write them by operators (torch::arange, t[i] = x), or make tables "
      "that C++ code fills before the guard");
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet({c10::DispatchKey::CPU, kDeferredKey}),
      shape.dtype());
  impl->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
  return at::Tensor(std::move(impl));
}

Content* content_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kDeferredKey) || !tensor.has_storage()) {
    return nullptr;
  }
  const auto& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &drop ? static_cast<Content*>(data.get_context()) : nullptr;
}

bool is_deferred(const at::Tensor& tensor) {
  const Content* content = content_of(tensor);
  return content != nullptr && !content->filled;
}

void adopt(const at::Tensor& tensor, const c10::Storage& storage) {
  auto* own = tensor.unsafeGetTensorImpl();
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(storage), own->key_set().remove(kDeferredKey), own->dtype());
  impl->set_sizes_and_strides(own->sizes(), own->strides(), own->storage_offset());
  copy_tag(*own, *impl);
  own->shallow_copy_from(impl);
}

uint64_t recipe_digest(const at::Tensor& tensor) {
  const Content* content = content_of(tensor);
  OSLO_CHECK(content != nullptr, "recipe_digest of an ordinary tensor");
  uint64_t digest = content->recipe ? content->recipe->digest : 0;
  for (const int64_t stride : tensor.strides()) digest = mix(digest, static_cast<uint64_t>(stride));
  return mix(digest, static_cast<uint64_t>(tensor.storage_offset()));
}

}  // namespace oslo
