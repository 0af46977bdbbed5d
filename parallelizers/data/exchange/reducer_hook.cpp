#include "parallelizers/data/exchange/reducer_hook.h"

#include "mpu/transport/presence/pending.h"

namespace oslo {

c10::intrusive_ptr<c10::ivalue::Future> ReducerHook::runHook(c10d::GradBucket& bucket) {
  if (bucket.isLast()) last_bucket_left_();
  const std::vector<at::Tensor> parameters = reduced_->parameters_of(bucket.getParameters());
  return exchange_.start({bucket.getBufferRef(), parameters}).future("of gradients");
}

}  // namespace oslo
