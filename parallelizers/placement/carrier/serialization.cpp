// What writes tensors to a file knows one process only: of a parallel parameter it would write this
// rank's part, which passes for the whole when it is read. Every way of pickling meets a refusal.
#include <ATen/core/Tensor.h>

#include "mpu/base/error.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/libtorch/pickler_entry.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

void refuse_part(const at::Tensor& tensor) {
  if (!tensor.key_set().has(kPlacedKey)) return;
  const Mark* mark = mark_of(tensor);
  if (mark == nullptr) return;  // a placed tensor has no storage, which was asked for before
  if (mark->layout->whole() && !mark->layout->resident()) return;  // all of it
  fail("torch::save would write only this rank's part, ", tensor.sizes(), " of ",
       c10::IntArrayRef(mark->layout->global_sizes(tensor.sizes())), ", of parallel parameter ",
       mark->name,
       ", or of a gradient or state of it, as if it were the whole; use "
       "parallel.save_parallelized(path), with SaveOptions().merge_checkpoints(true) for one file "
       "of the whole model, or save oslo::full_tensor(t)");
}

const PicklerEntry entry(&refuse_part);

}  // namespace
}  // namespace oslo
