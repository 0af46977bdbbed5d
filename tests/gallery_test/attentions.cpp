#include <torch/torch.h>

#include "tests/gallery_test/exhibit.h"

// Attention under masks, and the gradients of queries, keys and values.
namespace gallery {
namespace {

constexpr int64_t kLength = 9, kHeads = 4, kWidth = 12, kTokens = 11;

/// May position i look at position j? Two documents of 5 and 4 tokens, or one of 9.
Tensor visible(const std::string& kind) {
  const Tensor i = torch::arange(kLength).unsqueeze(1), j = torch::arange(kLength).unsqueeze(0);
  if (kind == "window") return (j <= i) & (i - j < 3);
  if (kind == "chunks") return (j <= i) & (i.div(4, "floor") == j.div(4, "floor"));
  if (kind == "documents") return (j <= i) & ((i < 5) == (j < 5));
  return j <= i;
}

/// Two forwards, of which the second has another token at position 2: what changes is noted.
struct Probed : Program {
  explicit Probed(std::string kind) : kind(std::move(kind)) {
    table = register_module("table", torch::nn::Embedding(kTokens, kWidth));
    for (const char* name : {"q", "k", "v", "o"}) {
      layers.push_back(register_module(name, torch::nn::Linear(kWidth, kWidth)));
    }
  }
  Tensor heads(int i, const Tensor& x) {
    return layers[i](x).view({x.size(0), kLength, kHeads, kWidth / kHeads}).transpose(1, 2);
  }
  Tensor of(const Tensor& ids) {
    const Tensor x = table(ids);
    Tensor mask = visible(kind);
    if (kind == "bias") {  // a number for each distance, as ALiBi has it
      const Tensor far = torch::arange(kLength).unsqueeze(1) - torch::arange(kLength);
      mask =
          (-0.3 * far.to(x.dtype())).masked_fill(~mask, -std::numeric_limits<double>::infinity());
    }
    const Tensor found =
        torch::scaled_dot_product_attention(heads(0, x), heads(1, x), heads(2, x), mask);
    return layers[3](found.transpose(1, 2).reshape_as(x));
  }
  Tensor loss(const Tensors& rows) override {
    const Tensor mine = of(rows[0]), other = of(rows[1]);
    note("changed", ((mine - other).abs() > 1e-12).any(-1));
    return mine.pow(2).mean() + other.pow(2).mean();
  }
  std::string kind;
  torch::nn::Embedding table{nullptr};
  std::vector<torch::nn::Linear> layers;
};

Tensors probes(int /*step*/) {
  const Tensor ids = torch::randint(kTokens, {4, kLength});
  Tensor other = ids.clone();
  other.select(1, 2) = (other.select(1, 2) + 1) % kTokens;
  return {ids, other};
}

Exhibit probed(const char* id, const std::string& kind, std::vector<int64_t> changed) {
  Exhibit exhibit{id, "trl#6843, accelerate#4177",
                  [kind] { return std::make_shared<Probed>(kind); }, probes};
  Tensor right = torch::zeros({kLength}, torch::kBool);
  right.index_fill_(0, torch::tensor(changed), true);
  exhibit.right = {{"changed", right.expand({4, kLength}).contiguous()}};
  exhibit.later = {sequence(2), sequence(4)};
  return exhibit;
}

/// Queries, keys and values are parameters: their gradients are compared each by itself.
struct Dense : Program {
  Dense() {
    for (const char* name : {"q", "k", "v"}) {
      layers.push_back(register_module(name, torch::nn::Linear(kWidth, kWidth)));
    }
  }
  Tensor loss(const Tensors& rows) override {
    Tensors found;
    for (auto& layer : layers) {
      found.push_back(layer(rows[0]).view({-1, kLength, kHeads, kWidth / kHeads}).transpose(1, 2));
    }
    return torch::scaled_dot_product_attention(found[0], found[1], found[2], {}, 0, true)
        .pow(2)
        .mean();
  }
  std::vector<torch::nn::Linear> layers;
};

}  // namespace

std::vector<Exhibit> attentions() {
  std::vector<Exhibit> all;
  all.push_back(probed("G12 window", "window", {2, 3, 4}));
  all.push_back(probed("G12 chunks", "chunks", {2, 3}));
  all.push_back(probed("G12 documents", "documents", {2, 3, 4}));
  all.push_back(probed("G12 bias", "bias", {2, 3, 4, 5, 6, 7, 8}));
  all.push_back({"G17", "diffusers#14265, TransformerEngine#1557", made<Dense>, [](int) {
                   return Tensors{torch::randn({4, kLength, kWidth})};
                 }});
  all.back().later = {sequence(2), sequence(3), sequence(4)};
  return all;
}

}  // namespace gallery
