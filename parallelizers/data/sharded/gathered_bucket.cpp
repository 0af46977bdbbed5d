#include "parallelizers/data/sharded/gathered_bucket.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "mpu/collectives/overlap.h"
#include "parallelizers/data/sharded/bucket_tag.h"
#include "parallelizers/data/sharded/rule_name.h"
#include "parallelizers/data/sharded/written_counts.h"
#include "parallelizers/libtorch/aligned.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/memory/saved_geometry.h"
#include "parallelizers/memory/saved_tensors.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

/// How many elements of so many bytes a weight takes with what is left free behind it.
int64_t aligned_elements(int64_t elements, size_t element) {
  return static_cast<int64_t>(aligned(static_cast<size_t>(elements) * element) / element);
}

}  // namespace

bool GatheredBucket::is_unwritten(const std::vector<at::Tensor>& parts) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (version_of(*parts[i].unsafeGetTensorImpl()) != weights_[i].version) return false;
  }
  return std::all_of(handed_.begin(), handed_.end(), [](const Handed& one) {
    return one.counter.current_version() == one.version;
  });
}

void GatheredBucket::count_writes_of(const at::Tensor& data) {
  let_go();  // what it writes before the next use is seen there
  may_be_written_ = true;
  if (data.is_inference()) return;  // counts nothing
  std::erase_if(handed_, [](const Handed& one) { return one.counter.unique(); });
  const c10::VariableVersion& counter = data.unsafeGetTensorImpl()->version_counter();
  handed_.push_back({counter, counter.current_version()});
}

int64_t GatheredBucket::gathered_bytes() const {
  return memory_.defined() ? static_cast<int64_t>(memory_.nbytes()) : 0;
}

void GatheredBucket::let_go() {
  ShardBucket::let_go();
  ahead_.reset();
  memory_.reset();
  wholes_.clear();
}

void GatheredBucket::bring(const std::vector<at::Tensor>& parts) {
  if (!memory_.defined() || !is_unwritten(parts)) gather(parts);
}

at::Tensor GatheredBucket::alias_of_whole(size_t number, const at::Tensor& /*part*/) const {
  return alias_counted_by(wholes_[number], wholes_[number]);
}

std::vector<uint32_t> GatheredBucket::written(const std::vector<at::Tensor>& parts) const {
  std::vector<uint32_t> written;
  for (const at::Tensor& part : parts) written.push_back(version_of(*part.unsafeGetTensorImpl()));
  for (const Handed& one : handed_) written.push_back(one.counter.current_version());
  return written;
}

JoinedShards GatheredBucket::shards() const {
  std::vector<const ShardPieces*> pieces;
  for (const Weight& weight : weights_) pieces.push_back(&*weight.pieces);
  return {pieces, replicas_->size(), /*beside=*/1};
}

/// What this rank gives to the others.
at::Tensor GatheredBucket::own_shard(const std::vector<at::Tensor>& parts) const {
  std::vector<at::Tensor> own;
  for (const at::Tensor& part : parts) {
    OSLO_CHECK(part.scalar_type() == parts[0].scalar_type(), "weights of ", name_,
               ", of which data replicas keep parts, are ", parts[0].scalar_type(), " and ",
               part.scalar_type(), "; give those of a layer one type");
    own.push_back(unmarked_alias(part).reshape(-1));
  }
  own.push_back(bucket_tag::bits(number_, own[0].options()));
  return at::cat(own);
}

void GatheredBucket::gather_ahead() {
  const std::vector<at::Tensor> parts = this->parts();
  if (memory_.defined() && is_unwritten(parts)) return;
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope(kZeroRule);
  const at::Tensor own = own_shard(parts);
  if (!moves_aside(own, *replicas_)) return;
  ahead_ = Ahead{replicas_->start_all_gather(own, 0, shards().sizes()), written(parts)};
}

void GatheredBucket::gather(const std::vector<at::Tensor>& parts) {
  const BelowDoor below;
  const c10::InferenceMode off(false);  // a forward that is recorded may come to them next
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope(kZeroRule);
  std::optional<Ahead> ahead = std::exchange(ahead_, std::nullopt);
  let_go();
  all_->about_to_gather(*this);
  JoinedShards shards = this->shards();
  if (ahead && ahead->written != written(parts)) ahead.reset();
  at::Tensor joined =
      ahead ? ahead->joined.wait() : replicas_->all_gather(own_shard(parts), 0, shards.sizes());
  if (joined.is_cpu()) check_others_gather_it(joined, shards);
  lay_out(joined, shards, parts);
  joined.reset();
  regain_saved();
  all_->has_gathered(shared_from_this());
}

/// On devices that would be waited for; there a backward pass sees it first.
void GatheredBucket::check_others_gather_it(const at::Tensor& joined,
                                            const JoinedShards& shards) const {
  const auto number_of = [&](int replica) {
    return bucket_tag::number_in(shards.beside(joined, replica));
  };
  const int own = replicas_->rank();
  for (int replica = 0; replica < replicas_->size(); ++replica) {
    const size_t number = number_of(replica);
    OSLO_CHECK_AS(peer, number == number_of(own), "data rank ", replicas_->ranks()[replica],
                  " of the world gathers the weights of ", all_->name_of(number), ", rank ",
                  replicas_->ranks()[own], " those of ", name_,
                  "; data ranks that keep parts of the weights use the same layers in the same "
                  "order");
  }
}

/// Whole weights, of what the replicas have sent.
void GatheredBucket::lay_out(const at::Tensor& joined, JoinedShards& shards,
                             const std::vector<at::Tensor>& parts) {
  const auto element = static_cast<size_t>(joined.element_size());
  int64_t elements = 0;
  for (const Weight& weight : weights_)
    elements += aligned_elements(weight.pieces->elements(), element);
  memory_ = memory_for(elements, joined.options());
  may_be_written_ = false;
  last_memory_ = memory_.storage().getWeakStorageImpl();
  int64_t begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ShardPieces& pieces = *weights_[i].pieces;
    const at::Tensor whole = memory_.as_strided(pieces.sizes, pieces.strides, begin);
    begin += aligned_elements(pieces.elements(), element);
    shards.read(joined, whole);
    wholes_.push_back(alias_counted_by(whole, whole));
    weights_[i].version = version_of(*parts[i].unsafeGetTensorImpl());
  }
  std::erase_if(handed_, [](const Handed& one) { return one.counter.unique(); });
  for (Handed& one : handed_) one.version = one.counter.current_version();
}

/// What operators save over the memory is gathered again, not kept.
void GatheredBucket::regain_saved() {
  const auto own =
      std::weak_ptr<GatheredBucket>(std::static_pointer_cast<GatheredBucket>(shared_from_this()));
  regained_.push_back(regain_memory(memory_, [own](const at::Tensor& saved) {
    const auto bucket = own.lock();
    if (!bucket) return UnpackSavedTensor();
    return UnpackSavedTensor([bucket, use = bucket->saved_use(), versions = bucket->versions(),
                              lies = geometry_of(saved)] {
      bucket->check_not_written(versions);
      bucket->all_->about_to_use();
      bucket->bring(bucket->parts());
      return lay(lies, bucket->memory_.storage());
    });
  }));
}

/// A view that a program has kept is of the last memory, and is to see what is gathered now.
at::Tensor GatheredBucket::memory_for(int64_t elements, const at::TensorOptions& options) const {
  if (auto kept = last_memory_ ? last_memory_->lock() : nullptr) {
    at::Storage storage(std::move(kept));
    if (storage.device() == options.device() &&
        storage.nbytes() == elements * options.dtype().itemsize()) {
      return at::empty({0}, options).set_(std::move(storage), 0, {elements}, {1});
    }
  }
  return at::empty({elements}, options);
}

void GatheredBucket::renew_kept() {
  if (memory_.defined() || !last_memory_ || last_memory_->expired()) return;
  const std::vector<at::Tensor> now = parts();
  if (may_be_written_ || !is_unwritten(now)) gather(now);
}

}  // namespace oslo
