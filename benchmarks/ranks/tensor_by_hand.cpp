// One rank of what a user would write without initialize: the GPT of model.h rewritten for tensor
// parallelism by hand, as Megatron-LM does (arXiv 1909.08053), over the library's groups. Its loss
// and gradient are those of `bench_training_step --words`, and so are its results' names.
//
//   oslo run -n 2 bench_tensor_by_hand --hidden 256
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "benchmarks/ranks/model.h"
#include "benchmarks/ranks/rank_program.h"
#include "benchmarks/ranks/timed_steps.h"
#include "mpu/collectives/collectives.h"
#include "mpu/group/group.h"

namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using GroupPtr = std::shared_ptr<oslo::Group>;

constexpr int64_t kVocabulary = 512, kPositions = 64, kHeads = 4, kLayers = 4, kBatch = 2;

/// Which of `ids` (token numbers) are another rank's, and the others as numbers of this one's.
struct OwnIds {
  OwnIds(const Tensor& ids, int64_t held, const oslo::Group& group) {
    const int64_t first = group.rank() * held;
    elsewhere = (ids < first).logical_or_(ids >= first + held);
    local = (ids - first).masked_fill_(elsewhere, 0);
  }
  Tensor elsewhere, local;
};

/// The mean cross entropy of logits whose classes are cut.
struct VocabularyLoss : torch::autograd::Function<VocabularyLoss> {
  static Tensor forward(AutogradContext* context, Tensor logits, const Tensor& targets,
                        const GroupPtr& group) {
    const Tensor largest = group->all_reduce(logits.amax(-1), oslo::Reduction::max);
    logits = logits - largest.unsqueeze(-1);
    const OwnIds own(targets, logits.size(-1), *group);
    Tensor picked = logits.gather(-1, own.local.unsqueeze(-1)).squeeze(-1);
    picked = group->all_reduce(picked.masked_fill_(own.elsewhere, 0));
    Tensor softmax = logits.exp_();
    const Tensor total = group->all_reduce(softmax.sum(-1));
    context->save_for_backward({softmax.div_(total.unsqueeze(-1)), own.local, own.elsewhere});
    return (total.log() - picked).mean();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    Tensor result = saved[0].clone();
    const Tensor minus_one = saved[2].to(result.scalar_type()) - 1;
    result.scatter_add_(-1, saved[1].unsqueeze(-1), minus_one.unsqueeze(-1));
    return {result.mul_(gradients[0] / static_cast<double>(result.size(0))), Tensor(), Tensor()};
  }
};

/// A model of this rank's parts, and the forward that joins them.
class GptByHand {
 public:
  GptByHand(int64_t width, GroupPtr group)
      : group_(std::move(group)),
        model_(kVocabulary, kPositions, width, kHeads, kLayers, /*tied=*/true, group_->size()) {
    const torch::NoGradGuard no_grad;
    bench::Gpt whole(kVocabulary, kPositions, width, kHeads, kLayers);
    const auto parameters = whole->named_parameters();
    for (auto& parameter : model_->named_parameters()) {
      Tensor part = parameters[parameter.key()];
      for (int64_t dim = 0; dim < part.dim(); ++dim) {
        const int64_t held = parameter.value().size(dim);
        if (held < part.size(dim)) part = part.narrow(dim, group_->rank() * held, held);
      }
      parameter.value().copy_(part);
    }
  }

  Tensor loss(const Tensor& tokens, const Tensor& targets) {
    const int64_t held = model_->wte->weight.size(0);
    const OwnIds own(tokens, held, *group_);
    const Tensor words = model_->wte(own.local).masked_fill(own.elsewhere.unsqueeze(-1), 0);
    const Tensor places = torch::arange(tokens.size(1), tokens.options());
    Tensor x = oslo::reduce_from(words, group_) + model_->wpe(places);
    for (const auto& block : *model_->h) x = layer(*block->as<bench::Block>(), x);
    x = oslo::copy_to(model_->lnf(x), group_);
    const Tensor logits = torch::matmul(x, model_->wte->weight.t()).view({-1, held});
    return VocabularyLoss::apply(logits, targets, group_);
  }

  bench::Gpt& model() { return model_; }

 private:
  Tensor layer(bench::BlockImpl& block, Tensor x) const {
    x = x + by_row(block.attn->proj, block.attn->attend(oslo::copy_to(block.ln1(x), group_)));
    const Tensor inside = bench::linear(block.fc, oslo::copy_to(block.ln2(x), group_));
    return x + by_row(block.proj, torch::gelu(inside));
  }

  Tensor by_row(const torch::nn::Linear& layer, const Tensor& x) const {
    return oslo::reduce_from(torch::linear(x, layer->weight), group_) + layer->bias;
  }

  GroupPtr group_;
  bench::Gpt model_;
};

struct Options {
  int64_t hidden = 64;
  int warm_up = 5, steps = 40;
};

void run(const Options& options) {
  at::set_num_threads(1);
  const oslo::World world = oslo::World::from_environment();
  const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(world.size()));
  const GroupPtr& group = mpu.group("tensor");
  GptByHand gpt(options.hidden, group);
  const Tensor place = torch::arange(kBatch * kPositions) * 7;
  const Tensor tokens = place.remainder(kVocabulary).view({kBatch, kPositions});
  const Tensor targets = (place + 3).remainder(kVocabulary);
  const auto step = [&] {
    gpt.model()->zero_grad();
    const Tensor loss = gpt.loss(tokens, targets);
    loss.backward();
    return loss;
  };

  nlohmann::json result;
  result["loss"] = step().item<double>();
  const Tensor own = gpt.model()->wte->weight.grad().abs().sum();
  result["gradient"] = group->all_reduce(own).item<double>();
  for (int i = 0; i < options.warm_up; ++i) step();
  const auto barrier = [&] { group->exchange(0); };
  result["milliseconds"] = bench::timed_steps(options.steps, barrier, [&] { step(); });
  if (world.rank() == 0) std::cout << result << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times forward and backward of a GPT that is tensor parallel by hand, on this rank");
  app.add_option("--hidden", options.hidden);
  app.add_option("--warm-up", options.warm_up);
  app.add_option("--steps", options.steps);
  bench::parse_or_exit(app, argc, argv);
  return bench::outcome_of([&] { run(options); });
}
