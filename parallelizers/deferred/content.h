#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>

#include "parallelizers/deferred/recipe.h"
#include "parallelizers/libtorch/keys.h"

namespace oslo {

/// What the tensors of one DeferredInit have in common.
struct DeferredModel {
  /// Their model has been filled: what else there is gets its content when it is used.
  std::atomic<bool> filled{false};
};

/// What hangs on the storage of deferred tensors: all views of it share it.
struct Content {
  Recipe recipe;
  c10::Storage filled;  ///< what took the storage's place; null: nothing yet
  std::shared_ptr<DeferredModel> model;
};

/// A tensor of a shape, on the CPU, without memory. Its storage holds what `recipe` says.
at::Tensor deferred_tensor(const at::Tensor& shape, Recipe recipe,
                           std::shared_ptr<DeferredModel> model);

/// Null where the tensor is an ordinary one.
Content* content_of(const at::Tensor& tensor);

/// Whether DeferredInit made the tensor, and it has no content yet.
bool is_deferred(const at::Tensor& tensor);

/// Gives a deferred tensor the storage that its content was filled into, in place: typed members,
/// ties, history, marks and version stay.
void adopt(const at::Tensor& tensor, const c10::Storage& storage);

/// What the content of a deferred tensor will be, in a word: equal where it will be equal.
uint64_t recipe_digest(const at::Tensor& tensor);

}  // namespace oslo
