#include "parallelizers/pipeline/run/copied_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <limits>
#include <map>

#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

/// No micro-batch has it.
constexpr int kCopiesTag = std::numeric_limits<int>::max() - 2;

/// A sparse one, of an embedding, becomes what it is beside the dense one of another use.
at::Tensor plain_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return {};
  return gradient.is_sparse() ? gradient.to_dense() : unmarked_alias(gradient);
}

}  // namespace

CopiedGradients::CopiedGradients(ContextPtr context, const std::vector<at::Tensor>& parameters)
    : context_(std::move(context)) {
  for (const at::Tensor& parameter : parameters) {
    const Mark* mark = mark_of(parameter);
    if (mark == nullptr || !mark->layout->resident() || !mark->layout->here()) continue;
    if (context_->stage_ranks().count_ranks(mark->layout->stages()) < 2) continue;
    if (!parameter.requires_grad()) continue;
    copied_.push_back({parameter, parameter.grad()});
    parameter.mutable_grad().reset();
  }
}

CopiedGradients::~CopiedGradients() {
  put_back();
}

void CopiedGradients::add_up() {
  if (!context_->pipeline()) return;
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope("copied parameters");
  const StageRanks& ranks = context_->stage_ranks();
  const int own_rank = ranks.rank();
  const auto is_on = [&](const Copied& each, int rank) {
    return ranks.on_rank(mark_of(each.parameter)->layout->stages(), rank);
  };
  // What each rank has, for each copy.
  std::vector<std::map<int, at::Tensor>> addends(copied_.size());
  for (size_t i = 0; i < copied_.size(); ++i) {
    const at::Tensor own = plain_gradient(copied_[i].parameter);
    addends[i][own_rank] = own.defined() ? own.contiguous() : own;
  }
  for (const bool sends : {true, false}) {
    for (int rank = 0; rank < ranks.ranks(); ++rank) {
      if (rank == own_rank) continue;
      std::vector<size_t> shared;
      for (size_t i = 0; i < copied_.size(); ++i) {
        if (is_on(copied_[i], rank)) shared.push_back(i);
      }
      if (shared.empty()) continue;
      if (sends) {
        std::vector<at::Tensor> message;
        for (const size_t i : shared) message.push_back(addends[i].at(own_rank));
        context_->pipeline()->send(message, rank, kCopiesTag);
        continue;
      }
      const std::vector<at::Tensor> message = context_->pipeline()->receive(rank, kCopiesTag);
      for (size_t k = 0; k < shared.size(); ++k) addends[shared[k]][rank] = message[k];
    }
  }
  for (size_t i = 0; i < copied_.size(); ++i) {
    at::Tensor sum;
    for (const auto& [rank, addend] : addends[i]) {
      if (!addend.defined()) continue;
      sum = sum.defined() ? sum + addend : addend.clone();
    }
    const at::Tensor& parameter = copied_[i].parameter;
    parameter.mutable_grad() = sum.defined() ? marked_gradient(sum, parameter) : at::Tensor();
  }
  put_back();
}

void CopiedGradients::put_back() {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  for (const auto& [parameter, before] : copied_) {
    if (!before.defined()) continue;
    at::Tensor& gradient = parameter.mutable_grad();
    // Of a step that threw before its exchange a replica that has rows of what was keeps these.
    if (gradient.defined() && gradient.sizes() == before.sizes()) before.add_(gradient);
    gradient = before;
  }
  copied_.clear();
}

}  // namespace oslo
