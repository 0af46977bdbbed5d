#include "parallelizers/data/gradient_hook.h"

#include <ATen/ATen.h>

#include "mpu/error.h"
#include "mpu/peer_failure.h"
#include "mpu/text.h"

namespace oslo {

GradientHook::GradientHook(std::shared_ptr<Group> group, std::function<void()> last_bucket_left)
    : group_(std::move(group)),
      last_bucket_left_(std::move(last_bucket_left)),
      failure_(std::make_shared<std::string>(c10::str(
          "all_reduce of gradients over group ", group_->name(), " (ranks ", group_->ranks(),
          ") failed on its rank ", group_->rank(), kPeerFailure, ", or did something else: "))) {}

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
      [gradients, failure = failure_](Future& done) -> c10::IValue {
        if (done.hasError()) {
          fail(*failure, first_line(done.tryRetrieveErrorMessage()));
        }
        return gradients;
      },
      c10::TensorType::get());
}

}  // namespace oslo
