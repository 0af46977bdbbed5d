#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include "tests/gallery_test/exhibit.h"

// Losses over a vocabulary that is cut, and means over counts that differ between ranks.
namespace gallery {
namespace {

namespace F = torch::nn::functional;

constexpr int64_t kVocabulary = 13, kHidden = 6;

/// A table, a layer and a head.
struct LanguageModel : Program {
  LanguageModel() {
    wte = register_module("wte", torch::nn::Embedding(kVocabulary, kHidden));
    mid = register_module("mid", torch::nn::Linear(kHidden, kHidden));
    head = register_module("head", torch::nn::Linear(kHidden, kVocabulary));
  }
  Tensor logits(const Tensor& ids) { return head(torch::tanh(mid(wte(ids)))); }
  torch::nn::Embedding wte{nullptr};
  torch::nn::Linear mid{nullptr}, head{nullptr};
};

Tensors tokens(int64_t rows, int64_t length) {
  return {torch::randint(kVocabulary, {rows, length}), torch::randint(kVocabulary, {rows, length})};
}

/// Whoever adds up exp() over parts of the vocabulary loses logits of such a size.
struct Smoothed : LanguageModel {
  explicit Smoothed(double factor) : factor(factor) {}
  Tensor loss(const Tensors& rows) override {
    return F::cross_entropy(logits(rows[0]).flatten(0, 1) * factor, rows[1].flatten(),
                            F::CrossEntropyFuncOptions().label_smoothing(0.1));
  }
  double factor;
};

/// A loss of the whole logits that the program asks for, beside one of the cut ones. Of an ordinary
/// tensor `full_tensor` is that tensor.
struct Gathered : LanguageModel {
  Tensor loss(const Tensors& rows) override {
    const Tensor found = logits(rows[0]).flatten(0, 1), labels = rows[1].flatten();
    return F::cross_entropy(found, labels) + F::cross_entropy(oslo::full_tensor(found), labels);
  }
};

struct TwoHeads : LanguageModel {
  TwoHeads() { second = register_module("second", torch::nn::Linear(kHidden, 5)); }
  Tensor loss(const Tensors& rows) override {
    const Tensor h = torch::tanh(mid(wte(rows[0])));
    return F::cross_entropy(head(h).flatten(0, 1), rows[1].flatten()) +
           F::cross_entropy(second(h).flatten(0, 1), rows[2].flatten());
  }
  torch::nn::Linear second{nullptr};
};

Tensors tokens_of_two_heads(int /*step*/) {
  Tensors batch = tokens(4, 5);
  Tensor labels = torch::randint(5, {4, 5});
  labels[0].slice(0, 1).fill_(-100);  // one of the first rows, all of the last
  labels[2][3].fill_(-100);
  return {batch[0], batch[1], labels};
}

/// The mean over what counts in the whole batch: the parts of a step are averaged, so each of them
/// gets its share.
struct CountedWeight : Program {
  CountedWeight() {
    weight =
        register_module("weight", torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
    torch::nn::init::ones_(weight->weight);
  }
  void look_at(const Tensors& batch) override { count = batch[1].sum().item<double>(); }
  Tensor loss(const Tensors& rows) override {
    return (weight(rows[0].unsqueeze(-1)).squeeze(-1) * rows[1]).sum() * parts / count;
  }
  torch::nn::Linear weight{nullptr};
  double count = 0;
};

/// Five tokens of 1 on the first data rank, one of 7 on the second.
Tensors uneven_counts(int /*step*/) {
  Tensor x = torch::zeros({4, 5}), counts = torch::zeros({4, 5});
  x[0].fill_(1);
  counts[0].fill_(1);
  x[2].fill_(7);
  counts[2][0] = 1;
  return {x, counts};
}

/// The next token, by slices of the sequence.
struct NextToken : LanguageModel {
  Tensor loss(const Tensors& rows) override {
    using torch::indexing::None;
    using torch::indexing::Slice;
    const Tensor found = logits(rows[0]).index({Slice(), Slice(None, -1)});
    const Tensor labels = rows[1].index({Slice(), Slice(1, None)});
    note("labels", (labels != -100).sum(1));
    return F::cross_entropy(
               found.flatten(0, 1), labels.flatten(),
               F::CrossEntropyFuncOptions().ignore_index(-100).reduction(torch::kSum)) *
           parts / count;
  }
  void look_at(const Tensors& batch) override {
    count = (batch[1].slice(1, 1) != -100).sum().item<double>();
  }
  double count = 0;
};

/// Most of the labels that count lie in the first half of the batch.
Tensors labelled(int64_t length) {
  const Tensor ids = torch::randint(kVocabulary, {4, length});
  Tensor labels = ids.clone();
  labels[2].slice(0, 3).fill_(-100);
  labels[3].slice(0, 2, length - 1).fill_(-100);
  return {ids, labels};
}

Exhibit next_token(const char* id, int64_t length) {
  Exhibit exhibit{id, "transformers#36607, #48570, #48563", made<NextToken>,
                  [length](int) { return labelled(length); }};
  exhibit.right = {{"labels", torch::tensor({length - 1, length - 1, int64_t(2), int64_t(2)})}};
  exhibit.gathers_nothing = true;
  return exhibit;
}

/// One label in all; the other ranks and micro-batches have none.
Tensors one_label(int /*step*/) {
  const Tensor ids = torch::randint(kVocabulary, {4, 8});
  Tensor labels = torch::full({4, 8}, -100, torch::kLong);
  labels[0][3] = 5;
  return {ids, labels};
}

/// What reinforcement learning takes of a language model. The gradient of every logit is needed,
/// that of tokens on other ranks too.
struct LogProbability : LanguageModel {
  LogProbability() {
    const torch::NoGradGuard no_grad;
    head->weight.zero_();
    head->bias.zero_();
  }
  Tensor loss(const Tensors& rows) override {
    const Tensor all = torch::log_softmax(logits(rows[0]), -1);
    return -all.gather(-1, rows[1].unsqueeze(-1)).mean();
  }
};

Tensors always_token_4(int /*step*/) {
  Tensors batch = tokens(4, 5);
  batch[1].fill_(4);
  return batch;
}

/// Every rank of a copy has the loss: added up over them it would be as many times too large.
struct Logged : Program {
  Logged() {
    for (const char* name : {"first", "second"}) {
      auto layer =
          register_module(name, torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
      torch::nn::init::ones_(layer->weight);
      layers.push_back(layer);
    }
  }
  Tensor loss(const Tensors& rows) override { return layers[1](layers[0](rows[0])).mean(); }
  std::vector<torch::nn::Linear> layers;
};

Tensors ones_and_threes(int /*step*/) {
  Tensor x = torch::ones({4, 1});
  x.slice(0, 2).fill_(3);
  return {x};
}

}  // namespace

std::vector<Exhibit> losses() {
  std::vector<Exhibit> all;
  const auto add = [&](Exhibit exhibit) -> Exhibit& {
    return all.emplace_back(std::move(exhibit));
  };
  const auto four_by_five = [](int) { return tokens(4, 5); };

  add({"G1", "Megatron#737, #7452, #7464", [] { return std::make_shared<Smoothed>(1); },
       four_by_five});
  Exhibit& large = add({"G1 large", "Megatron#737, #7464",
                        [] { return std::make_shared<Smoothed>(1000); }, four_by_five});
  large.dtype = torch::kFloat32;
  large.tolerance =
      2e-4;  // a loss of thousands, exact to 1e-7, of which a logit's rounding is 1e-4
  large.sgd = true;
  large.steps = 1;
  // Between stages full_tensor has no history.
  add({"G2", "Megatron#7452", made<Gathered>, four_by_five}).layouts = {
      {1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}};
  add({"G3", "Megatron#7452, #4896", made<TwoHeads>, tokens_of_two_heads}).by_parts = true;
  Exhibit& counted = add({"G3 counted", "Megatron#7452", made<CountedWeight>, uneven_counts});
  counted.right = {{"gradient of weight.weight", torch::full({1, 1}, 2.0)}};
  counted.layouts = {{1, 2}, {2, 1}, {2, 2}, zero(2), zero(3), zero(2, 2), zero(3, 2)};
  all.push_back(next_token("G11 of 8", 8));
  all.push_back(next_token("G11 of 9", 9));
  all.push_back(next_token("G11 of 13", 13));
  add({"G16", "torchtitan#2972, #1733", made<NextToken>, [](int step) {
         Tensors batch = labelled(9);
         batch[1][step % 4].fill_(-100);
         return batch;
       }});
  Exhibit& probability = add({"G19", "ms-swift#9947", made<LogProbability>, always_token_4});
  Tensor gradient = torch::full({kVocabulary}, 1.0 / kVocabulary);
  gradient[4] -= 1;
  probability.right = {{"gradient of head.bias", gradient}};
  probability.gathers_nothing = true;
  Exhibit& one = add({"G21", "Megatron#7452, #7513", made<NextToken>, one_label});
  one.later = {sequence(2), sequence(4)};
  // Such small models would be cut otherwise: in all of these the vocabulary is to be cut.
  for (Exhibit& exhibit : all) {
    if (std::dynamic_pointer_cast<LanguageModel>(exhibit.make()) == nullptr) continue;
    exhibit.plan = R"({"head": "column"})";
  }
  Exhibit& logged = add({"G27", "SkyRL#1420", made<Logged>, ones_and_threes});
  logged.right = {{"loss", torch::scalar_tensor(2.0)}};
  return all;
}

}  // namespace gallery
