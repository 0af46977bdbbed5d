#include "oslo_cpp/step/check_step.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceType.h>
#include <unistd.h>

#include <mutex>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "mpu/group/rank_check.h"

namespace oslo {
namespace {

/// Ranks that are threads of one process draw from one generator, each a while later than others.
void check_generator(at::Generator generator, Group& copy) {
  uint64_t digest = 0;
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    digest = content_digest(generator.get_state());
  }
  const auto owner = reinterpret_cast<intptr_t>(generator.unsafeGetGeneratorImpl());
  const std::vector<int64_t> processes = copy.exchange(::getpid()), owners = copy.exchange(owner),
                             digests = copy.exchange(static_cast<int64_t>(digest));
  std::vector<int> different;
  for (int rank = 1; rank < copy.size(); ++rank) {
    const bool same = processes[rank] == processes[0] && owners[rank] == owners[0];
    if (!same && digests[rank] != digests[0]) different.push_back(copy.ranks()[rank]);
  }
  if (different.empty()) return;
  fail("OSLO_CHECK: the state of the default generator of the ",
       c10::DeviceTypeName(generator.device().type()),
       ", at the beginning of a step, must be the same on all ranks of group ", copy.name(), " (",
       copy.ranks(), "), and is not on ranks ", different, " what it is on rank ", copy.ranks()[0],
       "; between steps draw the same numbers on all ranks of one model, or from a generator of "
       "your own (noise on the gradients that a rank has, a draw of rank 0 alone)");
}

}  // namespace

void check_step(const std::vector<at::Tensor>& batch, const std::vector<at::Generator>& generators,
                Group& copy) {
  if (!checks_ranks() || copy.size() == 1) return;
  const RuleScope scope("forward_backward_step");
  for (const at::Tensor& tensor : batch) check_same_on_ranks(tensor, copy, "a tensor of the batch");
  const RuleScope counted("OSLO_CHECK");
  for (const at::Generator& generator : generators) check_generator(generator, copy);
}

}  // namespace oslo
