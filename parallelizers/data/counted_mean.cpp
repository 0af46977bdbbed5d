#include "parallelizers/data/counted_mean.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_set>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/data/counted_gradients.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/graph/accumulators.h"

namespace oslo {
namespace {

/// What a rank tells the others, as doubles.
struct Said {
  enum Field { sum, count, step_count, form, total, exchanges, history, fields };
  std::array<double, fields> numbers{};
};

/// A loss that is not one number; -1 stands for no count of the step.
constexpr double kNoNumber = -1, kNoStepCount = -1;

std::vector<Said> of_all_ranks(Group& group, const Said& own) {
  std::vector<Said> all(group.size());
  if (group.size() == 1) return all[0] = own, all;
  const RuleScope scope("counted mean");
  const at::Tensor part = at::empty({Said::fields}, at::kDouble);
  std::copy(own.numbers.begin(), own.numbers.end(), part.mutable_data_ptr<double>());
  const std::vector<int64_t> sizes(group.size(), Said::fields);
  const at::Tensor joined = group.all_gather(part, 0, sizes);
  const double* number = joined.const_data_ptr<double>();
  for (Said& said : all) {
    for (double& each : said.numbers) each = *number++;
  }
  return all;
}

double total_of(const std::vector<Said>& all, Said::Field field) {
  double total = 0;
  for (const Said& said : all) total += said.numbers[field];
  return total;
}

bool is_count(double count) {
  return std::isfinite(count) && count >= 0;
}

/// The same on all ranks.
void check_said(const std::vector<Said>& all, const Group& group) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto& own = all[rank].numbers;
    const auto& first = all[0].numbers;
    const std::string who = c10::str("counted_mean: data rank ", rank, " of group ", group.name());
    OSLO_CHECK(own[Said::history] != kNoNumber, who,
               " gave a loss that is not one number; pass this rank's sum: loss.sum()");
    OSLO_CHECK(is_count(own[Said::count]), who, " gave the count ", own[Said::count],
               "; it must be finite and not negative");
    OSLO_CHECK(
        (own[Said::step_count] == kNoStepCount) == (first[Said::step_count] == kNoStepCount), who,
        " and data rank 0 do not both give the count of their step; call it alike on all ranks");
    OSLO_CHECK(own[Said::step_count] == kNoStepCount || is_count(own[Said::step_count]), who,
               " gave the step count ", own[Said::step_count],
               "; it must be finite and not negative");
    OSLO_CHECK(own[Said::step_count] == kNoStepCount || own[Said::step_count] >= own[Said::count],
               who, " counts ", own[Said::count], " in this call and ", own[Said::step_count],
               " in the whole step; the latter is to be the sum of all calls of the step");
    OSLO_CHECK(own[Said::history] == first[Said::history], who,
               own[Said::history] == 0 ? " gave a loss without history, data rank 0 one with it"
                                       : " gave a loss with history, data rank 0 one without it",
               ", so that one would wait for the other's backward pass; where there is nothing to "
               "count let it depend on the model nevertheless: output.sum() * 0");
    const bool alike = own[Said::form] == first[Said::form] &&
                       own[Said::total] == first[Said::total] &&
                       own[Said::exchanges] == first[Said::exchanges];
    OSLO_CHECK(alike, who, " and data rank 0 have accumulated differently: gradients over ",
               own[Said::total], " and ", first[Said::total],
               " elements; run the same backward passes, zero_grad() and no_sync() on all ranks");
  }
}

/// What the loss gives a gradient to beside `own`; empty: nothing.
std::string others_than(const CountedGradients& own, const at::Tensor& loss) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const at::Tensor& parameter : own.parameters()) {
    known.insert(parameter.unsafeGetTensorImpl());
  }
  std::string others;
  for_each_accumulator(loss, [&](const at::Tensor& leaf, const torch::autograd::Node&) {
    if (known.contains(leaf.unsafeGetTensorImpl())) return;
    others = c10::str("a tensor of shape ", leaf.sizes(),
                      " that is no parameter of this DistributedDataParallel");
  });
  return others;
}

}  // namespace

Count::Count(const at::Tensor& count) : value_(std::numeric_limits<double>::quiet_NaN()) {
  if (count.defined() && count.numel() == 1) value_ = count.item().toDouble();
}

at::Tensor counted_mean(const at::Tensor& loss_sum, const Count& count, DataParallelCore& core,
                        const std::optional<Count>& step_count) {
  const bool number = loss_sum.defined() && loss_sum.numel() == 1 && !is_placed(loss_sum);
  const bool records = number && c10::GradMode::is_enabled() && loss_sum.requires_grad();
  const std::shared_ptr<CountedGradients> gradients = core.counted_gradients();
  Said own;
  own.numbers[Said::sum] = number ? loss_sum.item().toDouble() : 0;
  own.numbers[Said::count] = count.value();
  own.numbers[Said::step_count] = step_count ? step_count->value() : kNoStepCount;
  own.numbers[Said::form] = static_cast<double>(gradients->form());
  own.numbers[Said::total] = gradients->total();
  own.numbers[Said::exchanges] = core.exchanges() ? 1 : 0;
  own.numbers[Said::history] = !number ? kNoNumber : records ? 1 : 0;
  const std::vector<Said> all = of_all_ranks(core.group(), own);
  check_said(all, core.group());
  const double counted = total_of(all, Said::count);
  const double sum = total_of(all, Said::sum);
  OSLO_CHECK(counted > 0 || sum == 0 || std::isnan(sum),
             "counted_mean: data ranks count no elements, and their losses sum up to ", sum,
             "; count what the sum is of");
  const double mean = sum / counted;
  if (!records) return at::full_like(loss_sum.detach(), mean);
  const bool exchanges = core.exchanges();
  const bool accumulates = !exchanges || !gradients->undefined();
  const std::string others =
      accumulates && !step_count ? others_than(*gradients, loss_sum) : std::string();
  const double in_step = total_of(all, Said::step_count);
  const at::Tensor result = loss_sum.clone();
  result.register_hook([=, whole = step_count.has_value()](const at::Tensor& gradient) {
    return gradient * (whole ? gradients->whole_step_begins(in_step)
                             : gradients->pass_begins(counted, exchanges, others));
  });
  result.detach().fill_(mean);
  return result;
}

}  // namespace oslo
