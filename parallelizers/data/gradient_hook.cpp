#include "parallelizers/data/gradient_hook.h"

#include <ATen/ATen.h>

#include <exception>

#include "mpu/transport/presence/pending.h"

namespace oslo {

GradientHook::GradientHook(std::shared_ptr<Group> group, std::function<void()> last_bucket_left)
    : group_(std::move(group)),
      last_bucket_left_(std::move(last_bucket_left)),
      label_(group_->label()) {}

c10::intrusive_ptr<c10::ivalue::Future> GradientHook::runHook(c10d::GradBucket& bucket) {
  using c10::ivalue::Future;
  const RuleScope scope("ddp");
  at::Tensor gradients = bucket.getBufferRef();
  if (bucket.isLast()) last_bucket_left_();
  if (gradients.numel() == 0) {  // parts of more ranks than rows; Gloo takes no empty tensor
    auto done = c10::make_intrusive<Future>(c10::TensorType::get());
    done->markCompleted(gradients);
    return done;
  }
  gradients.div_(group_->size());
  // The end runs on a thread of the process group, which must not hold that group's last reference.
  return group_->all_reduce_work(gradients)->getFuture()->then(
      [gradients, label = label_](Future& done) -> c10::IValue {
        if (done.hasError()) {
          try {
            std::rethrow_exception(done.exception_ptr());
          } catch (const std::exception& error) {
            fail_operation("all_reduce of gradients", *label, error);
          }
        }
        return gradients;
      },
      c10::TensorType::get());
}

}  // namespace oslo
