#include "mpu/group/rank_check.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mpu/base/digest.h"
#include "mpu/base/environment.h"
#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "mpu/base/parts.h"
#include "mpu/group/device_digest.h"

namespace oslo {
namespace {

thread_local std::optional<bool> in_scope;
thread_local int comparisons_left = 0;
thread_local bool first_step_comes = false;

constexpr int64_t kTextBytes = 192;

/// What a rank is doing, as text of one length on all ranks.
at::Tensor as_bytes(const std::string& text) {
  at::Tensor bytes = at::zeros({kTextBytes}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), std::min<size_t>(text.size(), kTextBytes - 1));
  return bytes;
}

std::string text_of(const at::Tensor& all, int rank) {
  return static_cast<const char*>(all.const_data_ptr()) + rank * kTextBytes;
}

/// Each rank's row of `own`, on the CPU.
at::Tensor rows_of(const at::Tensor& own, Group& group) {
  return group.all_gather(own, 0, std::vector<int64_t>(group.size(), own.size(0)));
}

/// Equal but for the order of sums in what it was computed from.
bool equal_but_for_rounding(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_floating_point()) return false;
  const auto known = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const at::Tensor x = known(a), y = known(b);
  const at::Tensor same = x.eq(y).logical_or(x.isnan().logical_and(y.isnan()));
  const double difference =
      (x - y).abs().masked_fill(same, 0).nan_to_num(INFINITY).max().item<double>();
  double epsilon = std::numeric_limits<double>::epsilon();
  if (a.scalar_type() == at::kFloat) epsilon = 0x1p-23;
  if (a.scalar_type() == at::kHalf) epsilon = 0x1p-10;
  if (a.scalar_type() == at::kBFloat16) epsilon = 0x1p-7;
  return difference <= std::sqrt(epsilon) * x.abs().nan_to_num(0, 0, 0).max().item<double>();
}

/// The group ranks whose values are not those of the first; all ranks find the same.
std::vector<int> ranks_that_differ(const at::Tensor& tensor, Group& group) {
  at::Tensor own = parts::plain(tensor.detach().reshape({-1}));
  if (own.is_complex()) own = at::view_as_real(own).reshape({-1});
  const at::Tensor all = rows_of(own, group);
  const auto parts = all.chunk(group.size());
  std::vector<int> different;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (at::equal(parts[rank], parts[0]) || equal_but_for_rounding(parts[rank], parts[0])) continue;
    different.push_back(group.ranks()[rank]);
  }
  return different;
}

/// What the environment says.
std::optional<bool> asked() {
  static const std::optional<bool> said = read_switch(Variable::check);
  return said;
}

}  // namespace

bool checks_ranks() {
  return in_scope.value_or(asked().value_or(comparisons_left > 0));
}

void compare_next(int comparisons) {
  comparisons_left = comparisons;
}

void compare_first_step() {
  first_step_comes = true;
}

FirstStepCheck::FirstStepCheck() {
  if (std::exchange(first_step_comes, false) && asked().value_or(true)) scope_.emplace();
}

RankCheckScope::RankCheckScope(bool on) : outer_(std::exchange(in_scope, on)) {}

RankCheckScope::~RankCheckScope() {
  in_scope = outer_;
}

uint64_t content_digest(const at::Tensor& tensor) {
  if (tensor.is_meta() || tensor.numel() == 0) return 0;
  const at::Tensor plain = parts::plain(tensor.detach());
  if (!plain.is_cpu()) return device_digest(plain);
  const auto* bytes = static_cast<const char*>(plain.const_data_ptr());
  const size_t size = plain.nbytes();
  uint64_t digest = size;
  for (size_t at = 0; at < size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min<size_t>(8, size - at));
    digest = mix(digest, word);
  }
  return digest;
}

void check_same_on_ranks(const at::Tensor& tensor, Group& group, const char* what) {
  const bool shape = !tensor.defined() || tensor.is_meta() || group.foresees_backward();
  if (group.size() == 1 || shape || tensor.layout() != at::kStrided) return;
  if (comparisons_left > 0) --comparisons_left;
  const std::string operation = RuleScope::current();
  const RuleScope scope("OSLO_CHECK");
  const c10::AutoGradMode no_grad(false);
  const std::string doing =
      c10::str(operation, ", ", what, " of shape ", tensor.sizes(), " and type ", tensor.dtype());
  const at::Tensor own = at::empty({2}, at::kLong);
  auto* digests = own.mutable_data_ptr<int64_t>();
  digests[0] = static_cast<int64_t>(digest_of(doing));
  digests[1] = static_cast<int64_t>(content_digest(tensor));
  const at::Tensor all = rows_of(own, group);
  const auto* of = all.const_data_ptr<int64_t>();
  const auto differs = [&](int word) {
    for (int rank = 1; rank < group.size(); ++rank) {
      if (of[2 * rank + word] != of[word]) return true;
    }
    return false;
  };
  if (differs(0)) {
    const at::Tensor texts = rows_of(as_bytes(doing), group);
    int other = 1;
    while (text_of(texts, other) == text_of(texts, 0) && other + 1 < group.size()) ++other;
    fail("OSLO_CHECK: the ranks of group ", group.name(), " part ways: rank ", group.ranks()[0],
         " is at ", text_of(texts, 0), ", rank ", group.ranks()[other], " at ",
         text_of(texts, other), "; the ranks of one model run the same code on the same batch");
  }
  if (!differs(1)) return;
  const std::vector<int> different = ranks_that_differ(tensor, group);
  if (different.empty()) return;
  fail("OSLO_CHECK: ", doing, ", must be the same on all ranks of group ", group.name(), " (",
       group.ranks(), "), and is not on ranks ", different, " what it is on rank ",
       group.ranks()[0],
       "; give the ranks of one model the same batch (a sampler divides by the data-parallel rank "
       "and size), and seed them alike");
}

}  // namespace oslo
