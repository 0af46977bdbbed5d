#include "parallelizers/placement/rules/reduce/vocabulary_loss.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <limits>
#include <utility>
#include <vector>

#include "mpu/collectives/collective_node.h"
#include "mpu/collectives/collectives.h"
#include "parallelizers/placement/rules/index/indexing.h"

namespace oslo {
namespace {

using torch::autograd::SavedVariable;

/// What backward needs of the forward.
struct Kept {
  at::Tensor exponentials;  ///< of the logits below the largest
  at::Tensor total;         ///< their sum over all classes
  OwnPositions own;         ///< of the targets' classes
};

at::Tensor largest_of(const at::Tensor& logits, const at::Tensor& target,
                      const CutClasses& classes) {
  at::Tensor largest =
      logits.size(classes.dim) > 0
          ? logits.amax(classes.dim, true)
          : at::full_like(target.unsqueeze(classes.dim), -std::numeric_limits<double>::infinity(),
                          logits.options());
  return classes.group->all_reduce(largest.contiguous(), Reduction::max);
}

/// The loss of each target.
at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& target, const CutClasses& classes,
                   Kept& kept) {
  const int64_t held = logits.size(classes.dim), dim = classes.dim;
  at::Tensor below = logits - largest_of(logits, target, classes);
  kept.own = own_positions(target, classes.first, held);
  std::vector<at::Tensor> sums(2);
  if (held > 0) {
    sums[1] = below.gather(dim, kept.own.local.unsqueeze(dim)).squeeze(dim);
    sums[1].masked_fill_(kept.own.elsewhere, 0);
  } else {
    sums[1] = below.sum(dim);
  }
  if (classes.smoothing > 0) sums.push_back(below.sum(dim));
  kept.exponentials = below.exp_();
  sums[0] = kept.exponentials.sum(dim);
  const at::Tensor packed = classes.group->all_reduce(at::stack(sums));
  kept.total = packed[0];
  const at::Tensor log_total = kept.total.log();
  const at::Tensor loss = log_total - packed[1];
  if (classes.smoothing == 0) return loss;
  const at::Tensor spread = log_total - packed[2] / static_cast<double>(classes.all);
  return loss * (1 - classes.smoothing) + spread * classes.smoothing;
}

/// The gradient of this rank's logits: the softmax, but for the target's class.
at::Tensor gradient_of_logits(const at::Tensor& gradient, const Kept& kept,
                              const CutClasses& classes) {
  const int64_t dim = classes.dim;
  at::Tensor all = kept.exponentials * (gradient / kept.total).unsqueeze(dim);
  if (classes.smoothing > 0) {
    all = all - (gradient * (classes.smoothing / static_cast<double>(classes.all))).unsqueeze(dim);
  }
  if (all.size(dim) == 0) return all;
  const at::Tensor picked = (gradient * (classes.smoothing - 1)).masked_fill(kept.own.elsewhere, 0);
  return all.scatter_add_(dim, kept.own.local.unsqueeze(dim), picked.unsqueeze(dim));
}

class VocabularyLossBackward final : public collective_node::CollectiveNode {
 public:
  VocabularyLossBackward(const Kept& kept, const CutClasses& classes)
      : CollectiveNode(classes.group),
        classes_(classes),
        exponentials_(kept.exponentials, /*is_output=*/false),
        total_(kept.total, /*is_output=*/false),
        place_(kept.own.local, /*is_output=*/false),
        elsewhere_(kept.own.elsewhere, /*is_output=*/false) {}

  std::string name() const override { return "OsloVocabularyLossBackward"; }

  at::Tensor backward(at::Tensor gradient) override {
    Kept kept{exponentials_.unpack(), total_.unpack(), {place_.unpack(), elsewhere_.unpack()}};
    if (c10::GradMode::is_enabled()) record(kept, gradient);
    return gradient_of_logits(gradient, kept, classes_);
  }

  void release_variables() override {
    for (SavedVariable* saved : {&exponentials_, &total_, &place_, &elsewhere_}) {
      saved->reset_data();
    }
  }

 private:
  /// What is kept, with the history of the logits: for the gradient's gradient. Every rank uses the
  /// total, and the gradient, for its own classes.
  void record(Kept& kept, at::Tensor& gradient) const {
    at::Tensor below = kept.exponentials.detach().log();
    torch::autograd::impl::set_gradient_edge(below, next_edge(0));
    kept.exponentials = below.exp();
    kept.total = copy_to(reduce_from(kept.exponentials.sum(classes_.dim), group_), group_);
    gradient = copy_to(gradient, group_);
  }

  const CutClasses classes_;
  SavedVariable exponentials_, total_, place_, elsewhere_;
};

}  // namespace

at::Tensor vocabulary_loss(const at::Tensor& logits, const at::Tensor& target,
                           const CutClasses& classes) {
  const bool records = collective_node::records(logits);
  Kept kept;
  at::Tensor loss;
  {
    const c10::AutoGradMode no_grad(false);
    loss = loss_of(logits, target, classes, kept);
  }
  if (!records) return loss;
  return collective_node::record(std::move(loss), logits,
                                 make_node<VocabularyLossBackward>(kept, classes));
}

}  // namespace oslo
