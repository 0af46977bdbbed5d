#include "mpu/group/group_agreement.h"

#include <ATen/ATen.h>

#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/base/told_error.h"

namespace oslo {

void agree_on_success(Group& group, const std::function<void()>& step) {
  bool failed = false;
  std::string what;
  try {
    step();
  } catch (const std::exception& error) {
    failed = true;
    what = ToldError::of(error).text();
  }
  const auto own = failed ? static_cast<int64_t>(what.size()) : int64_t{-1};
  const std::vector<int64_t> sizes = group.exchange(own);
  for (int rank = 0; rank < group.size(); ++rank) {
    if (sizes[rank] < 0) continue;
    at::Tensor text = at::empty({sizes[rank]}, at::kByte);
    if (rank == group.rank()) std::memcpy(text.mutable_data_ptr(), what.data(), what.size());
    if (sizes[rank] > 0) group.broadcast(text, rank);
    const ToldError error = ToldError::read(
        {static_cast<const char*>(text.const_data_ptr()), static_cast<size_t>(text.numel())});
    fail_as(error.kind, "rank ", group.ranks()[rank], ": ", error.message);
  }
}

}  // namespace oslo
