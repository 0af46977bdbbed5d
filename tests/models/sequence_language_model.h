#pragma once

#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/parity.h"

// A language model and its loss as their author wrote them, for one device.
namespace sequence_model {

using torch::Tensor;
using torch::indexing::None;
using torch::indexing::Slice;

enum class Positions { learned, rotary_table, rotary_by_arange, alibi };
enum class Shift { slices, roll, labels };

struct Options {
  int64_t words = 13, hidden = 12, heads = 3, key_heads = 3, layers = 2;
  bool by_hand = false;  ///< attention by its products and its softmax
  Positions positions = Positions::learned;
  Shift shift = Shift::slices;
  double dropout = 0;
  bool tied = true;
  /// (positions, positions), true where seen, beside what is causal; undefined: none.
  std::function<Tensor(const Tensor& ids)> mask = {};
};

/// Heads and features that two or four ranks divide.
inline Options four_heads(bool by_hand = false) {
  Options o;
  o.hidden = 16;
  o.heads = o.key_heads = 4;
  o.by_hand = by_hand;
  return o;
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Options& o) : o(o), size(o.hidden / o.heads) {
    const auto norm = [&] { return torch::nn::LayerNorm(std::vector<int64_t>{o.hidden}); };
    ln_1 = register_module("ln_1", norm());
    ln_2 = register_module("ln_2", norm());
    const int64_t keys = o.key_heads * size;
    q_proj = register_module("q_proj", torch::nn::Linear(o.hidden, o.hidden));
    k_proj = register_module("k_proj", torch::nn::Linear(o.hidden, keys));
    v_proj = register_module("v_proj", torch::nn::Linear(o.hidden, keys));
    out_proj = register_module("out_proj", torch::nn::Linear(o.hidden, o.hidden));
    fc_in = register_module("fc_in", torch::nn::Linear(o.hidden, 22));
    fc_out = register_module("fc_out", torch::nn::Linear(22, o.hidden));
    drop = register_module("drop", torch::nn::Dropout(o.dropout));
  }

  /// Pairs of features turned by their position.
  Tensor turned(const Tensor& x, const Tensor& angles) const {
    const std::vector<Tensor> halves = x.chunk(2, -1);
    const Tensor cos = angles.cos(), sin = angles.sin();
    return torch::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
  }

  Tensor attention(const Tensor& x, const Tensor& angles, const Tensor& bias) {
    const int64_t batch = x.size(0), length = x.size(1);
    const auto heads = [&](const Tensor& t) {
      return t.view({batch, length, -1, size}).transpose(1, 2);
    };
    Tensor q = heads(q_proj->forward(x)), k = heads(k_proj->forward(x));
    const Tensor v = heads(v_proj->forward(x));
    if (angles.defined()) {
      q = turned(q, angles);
      k = turned(k, angles);
    }
    Tensor mixed;
    const bool grouped = o.key_heads != o.heads;
    if (o.by_hand) {
      const auto each = [&](const Tensor& t) {
        return grouped ? t.repeat_interleave(o.heads / o.key_heads, 1) : t;
      };
      Tensor scores = q.matmul(each(k).transpose(-2, -1)) / std::sqrt(static_cast<double>(size));
      const Tensor seen = torch::ones({length, length}, torch::kBool).tril();
      scores = scores.masked_fill(seen.logical_not(), -INFINITY);
      if (bias.defined()) {
        scores = bias.scalar_type() == torch::kBool
                     ? scores.masked_fill(bias.logical_not(), -INFINITY)
                     : scores + bias;
      }
      mixed = drop->forward(scores.softmax(-1)).matmul(each(v));
    } else if (bias.defined()) {
      const Tensor seen = torch::ones({length, length}, torch::kBool).tril();
      const Tensor mask = bias.scalar_type() == torch::kBool
                              ? seen.logical_and(bias)
                              : bias.masked_fill(seen.logical_not(), -INFINITY);
      mixed = at::scaled_dot_product_attention(q, k, v, mask, is_training() ? o.dropout : 0.0,
                                               false, std::nullopt, grouped);
    } else {
      mixed = at::scaled_dot_product_attention(q, k, v, {}, is_training() ? o.dropout : 0.0, true,
                                               std::nullopt, grouped);
    }
    return out_proj->forward(mixed.transpose(1, 2).reshape({batch, length, o.hidden}));
  }

  Tensor forward(Tensor x, const Tensor& angles, const Tensor& bias) {
    x = x + drop->forward(attention(ln_1->forward(x), angles, bias));
    return x + drop->forward(fc_out->forward(torch::gelu(fc_in->forward(ln_2->forward(x)))));
  }

  Options o;
  int64_t size;
  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, out_proj{nullptr};
  torch::nn::Linear fc_in{nullptr}, fc_out{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(Block);

struct LanguageModelImpl : torch::nn::Module {
  explicit LanguageModelImpl(const Options& o) : o(o) {
    wte = register_module("wte", torch::nn::Embedding(o.words, o.hidden));
    if (o.positions == Positions::learned)
      wpe = register_module("wpe", torch::nn::Embedding(32, o.hidden));
    h = register_module("h", torch::nn::ModuleList());
    for (int64_t i = 0; i < o.layers; ++i) h->push_back(Block(o));
    ln_f = register_module("ln_f", torch::nn::LayerNorm(std::vector<int64_t>{o.hidden}));
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(o.hidden, o.words).bias(false)));
    if (o.tied) head->weight = wte->weight;
    table = register_buffer("table", angles_of(torch::arange(32)));
  }

  Tensor angles_of(const Tensor& positions) const {
    const int64_t half = o.hidden / o.heads / 2;
    return positions.to(torch::kDouble).unsqueeze(1) /
           torch::pow(10.0, torch::arange(half, torch::kDouble) / static_cast<double>(half));
  }

  Tensor forward(const Tensor& ids) {
    const int64_t length = ids.size(1);
    Tensor x = wte->forward(ids), angles, bias;
    if (o.positions == Positions::learned) x = x + wpe->forward(torch::arange(length));
    if (o.positions == Positions::rotary_table) angles = table.slice(0, 0, length);
    if (o.positions == Positions::rotary_by_arange) angles = angles_of(torch::arange(length));
    if (angles.defined()) angles = angles.to(x.dtype());
    if (o.positions == Positions::alibi) {
      const Tensor at = torch::arange(length);
      const Tensor slopes = torch::pow(2.0, -torch::arange(1, o.heads + 1).to(x.dtype()));
      bias = slopes.view({-1, 1, 1}) * (at.unsqueeze(0) - at.unsqueeze(1));
    }
    if (o.mask) bias = o.mask(ids);
    for (const auto& block : *h) x = block->as<BlockImpl>()->forward(x, angles, bias);
    return head->forward(ln_f->forward(x));
  }

  /// The mean over the words that follow another one, but those that are -100.
  Tensor loss(const Tensor& ids, const Tensor& ignored = {}) {
    Tensor logits = forward(ids);
    Tensor labels = ignored.defined() ? ids.masked_fill(ignored, -100) : ids;
    if (o.shift == Shift::slices) {
      logits = logits.index({Slice(), Slice(None, -1)});
      labels = labels.index({Slice(), Slice(1, None)});
    } else if (o.shift == Shift::roll) {
      labels = labels.roll(-1, 1);
      labels = labels.masked_fill(torch::arange(ids.size(1)) == ids.size(1) - 1, -100);
    } else {
      const Tensor none = torch::full({ids.size(0), 1}, -100, torch::kLong);
      labels = torch::cat({labels.index({Slice(), Slice(1, None)}), none}, 1);
    }
    return torch::nn::functional::cross_entropy(
        logits.reshape({-1, logits.size(-1)}), labels.reshape({-1}),
        torch::nn::functional::CrossEntropyFuncOptions().ignore_index(-100));
  }

  Options o;
  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f{nullptr};
  torch::nn::Linear head{nullptr};
  Tensor table;
};
TORCH_MODULE(LanguageModel);

struct Case {
  int ranks = 2;            ///< of "context_parallel_size"
  std::string config = {};  ///< beside it
  int64_t length = 9, batch = 2;
  bool example = true;
  /// Words whose labels do not count; undefined: all count.
  std::function<Tensor(const Tensor& ids)> ignored = {};
  int world = 0;           ///< 0: `ranks`
  std::string whole = {};  ///< the config in place of all that
  int steps = 3;
};

inline Tensor words(const Case& c, const Options& o, int step) {
  return parity::make_seeded(50 + step, [&] {
    return torch::randint(o.words, {c.batch, c.length}, torch::kLong);
  });
}

inline std::string config_of(const Case& c) {
  if (!c.whole.empty()) return c.whole;
  return R"({"model_parallelism": {"enable": true}, "context_parallel_size": )" +
         std::to_string(c.ranks) + (c.config.empty() ? "" : ", ") + c.config + "}";
}

/// The orders in which positions lie over ranks, as values of "context_order".
constexpr const char* kOrders[] = {"contiguous", "head_tail"};

inline std::string in_order(const std::string& order) {
  return R"("context_order": ")" + order + '"';
}

/// What a rank may look at after the first step.
using Look = std::function<void(const oslo::ParallelModel&, LanguageModel&)>;

/// Trains the model on one device and over ranks: losses, outputs, every gradient, weights after
/// the steps.
inline void expect_equal(const Options& o, const Case& c, const Look& look = {}) {
  oslo::run_as_threads(c.world == 0 ? c.ranks : c.world, [&](oslo::World world) {
    at::set_num_threads(1);
    const auto make = [&] {
      LanguageModel model(o);
      model->to(torch::kFloat64);
      return model;
    };
    LanguageModel reference = parity::make_seeded(7, make), model = parity::make_seeded(7, make);
    const torch::optim::AdamWOptions adam(1e-3);
    torch::optim::AdamW optimizer(model->parameters(), adam);
    torch::optim::AdamW reference_optimizer(reference->parameters(), adam);
    const auto loss = [&](LanguageModel& of, const Tensor& ids) {
      return of->loss(ids, c.ignored ? c.ignored(ids) : Tensor());
    };
    oslo::InitializeOptions how;
    how.world = world;
    // Drawn before anything else may draw: ranks that are threads share the generator.
    std::vector<Tensor> batches;
    for (int step = 0; step < c.steps; ++step) batches.push_back(words(c, o, step));
    if (c.example) how.example_inputs = [&] { loss(model, batches[0]).backward(); };
    auto parallel = oslo::initialize(model, oslo::Config::parse(config_of(c)), how);
    for (int step = 0; step < c.steps; ++step) {
      const Tensor& ids = batches[step];
      optimizer.zero_grad();
      reference_optimizer.zero_grad();
      for (const auto& group : parallel.mpu().groups()) group->ledger().clear();
      const Tensor expected = loss(reference, ids), found = loss(model, ids);
      expected.backward();
      found.backward();
      parity::expect_close(oslo::full_tensor(found.detach()), expected.detach(), "loss");
      parity::expect_gradients(*model, *reference);
      if (step == 0 && look) look(parallel, model);
      optimizer.step();
      reference_optimizer.step();
    }
    parity::expect_weights(*model, *reference);
  });
}

}  // namespace sequence_model
