#pragma once

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

// Small models of any make, for histories: tokens or features go in, a class a position comes out.
namespace history {

namespace nn = torch::nn;
using torch::Tensor;

enum class BlockKind {
  mlp,
  layer_norm,
  fused_attention,
  attention,
  multihead,
  conv1d,
  conv2d,
  own_matrix,
  own_linear,
  gate,
  positions,
  group_norm,
  gru,
  weight_norm,
  batch_norm,  ///< ranks of data parallelism see their own rows: the last, which they leave out
};
constexpr int kBlockKinds = static_cast<int>(BlockKind::batch_norm) + 1;

inline const char* name_of(BlockKind kind) {
  constexpr const char* kNames[] = {
      "Mlp",    "LayerNorm",  "FusedAttention", "Attention", "MultiheadAttention", "Conv1d",
      "Conv2d", "OwnMatrix",  "OwnLinear",      "Gate",      "Positions",          "GroupNorm",
      "Gru",    "WeightNorm", "BatchNorm1d"};
  return kNames[static_cast<int>(kind)];
}

struct BlockOptions {
  BlockKind kind;
  int64_t inner;
  bool bias;
};

enum class Tie {
  none,
  head_takes_table,     ///< head->weight = table->weight
  transposed_table,     ///< matmul(x, table->weight.t()), no head
  table_has_two_names,  ///< register_parameter("tied", table->weight)
  block_takes_weights,  ///< blocks[1]->up->weight = blocks[0]->up->weight
  block_has_two_names,  ///< register_module("again", blocks[0]), run twice
  block_runs_twice,     ///< one name
};

struct NetOptions {
  int64_t inputs = 11;  ///< the vocabulary, or the features
  bool tokens = true;
  int64_t width = 6, heads = 3, length = 3;
  std::vector<BlockOptions> blocks;
  Tie tie = Tie::none;
};

struct BlockImpl : nn::Module {
  BlockImpl(const BlockOptions& options, const NetOptions& net)
      : options(options), heads(net.heads) {
    const int64_t d = net.width, h = options.inner;
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, nn::Linear(nn::LinearOptions(in, out).bias(options.bias)));
    };
    const auto filled = [](at::IntArrayRef sizes) {
      return torch::randn(sizes) / std::sqrt(double(sizes.back()));
    };
    switch (options.kind) {
      case BlockKind::mlp:
        up = linear("up", d, h);
        down = linear("down", h, d);
        break;
      case BlockKind::layer_norm:
        norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({d})));
        break;
      case BlockKind::fused_attention:
        up = linear("c_attn", d, 3 * d);
        down = linear("c_proj", d, d);
        break;
      case BlockKind::attention:
        query = linear("query", d, d);
        key = linear("key", d, d);
        up = linear("value", d, d);
        down = linear("out", d, d);
        break;
      case BlockKind::multihead:
        multihead = register_module(
            "multihead",
            nn::MultiheadAttention(nn::MultiheadAttentionOptions(d, heads).bias(options.bias)));
        break;
      case BlockKind::conv1d:
        conv_in = register_module("conv_in", nn::Conv1d(nn::Conv1dOptions(d, h, 3).padding(1)));
        conv_out =
            register_module("conv_out", nn::Conv1d(nn::Conv1dOptions(h, d, 1).bias(options.bias)));
        break;
      case BlockKind::conv2d:
        image_in = register_module("image_in", nn::Conv2d(nn::Conv2dOptions(1, h, 3).padding(1)));
        image_out = register_module(
            "image_out", nn::Conv2d(nn::Conv2dOptions(h, 1, 3).padding(1).bias(options.bias)));
        break;
      case BlockKind::own_matrix:
        own = register_parameter("own", filled({d, h}));
        break;
      case BlockKind::own_linear:
        own = register_parameter("weight", filled({d, d}));
        own_bias = register_parameter("bias", torch::zeros({d}));
        break;
      case BlockKind::gate:
        own = register_parameter("gate", filled({d}));
        own_bias = register_parameter("scale", torch::full({}, 0.5));
        break;
      case BlockKind::positions:
        table = register_module("positions", nn::Embedding(net.length + 2, d));
        break;
      case BlockKind::group_norm:
        group_norm = register_module("norm", nn::GroupNorm(heads, d));
        break;
      case BlockKind::gru:
        gru = register_module("gru", nn::GRU(nn::GRUOptions(d, h).batch_first(true)));
        down = linear("down", h, d);
        break;
      case BlockKind::weight_norm:
        up = register_module("up", nn::Linear(d, d));
        own = register_parameter("v", up->weight.detach().clone());
        own_bias = register_parameter("g", up->weight.detach().norm(2, 1, true));
        break;
      case BlockKind::batch_norm:
        batch_norm = register_module("norm", nn::BatchNorm1d(d));
        break;
    }
  }

  Tensor forward(const Tensor& x) {
    switch (options.kind) {
      case BlockKind::mlp:
        return x + down(torch::gelu(torch::linear(x, up->weight, up->bias), "tanh"));
      case BlockKind::layer_norm:
        return norm(x);
      case BlockKind::fused_attention: {
        const auto parts = up(x).chunk(3, -1);
        return x + down(attend(parts[0], parts[1], parts[2]));
      }
      case BlockKind::attention:
        return x + down(attend(query(x), key(x), up(x)));
      case BlockKind::multihead: {
        const Tensor by_time = x.transpose(0, 1);
        return x + std::get<0>(multihead(by_time, by_time, by_time)).transpose(0, 1);
      }
      case BlockKind::conv1d:
        return x + conv_out(torch::silu(conv_in(x.transpose(1, 2)))).transpose(1, 2);
      case BlockKind::conv2d:
        return x + image_out(torch::tanh(image_in(x.unsqueeze(1)))).squeeze(1);
      case BlockKind::own_matrix:
        return x + torch::tanh(x.matmul(own)).matmul(own.t());
      case BlockKind::own_linear:
        return x + torch::tanh(nn::functional::linear(x, own, own_bias));
      case BlockKind::gate:
        return x * (1.0 - own) + torch::tanh(x) * own * own_bias;
      case BlockKind::positions:
        return x + table(torch::arange(x.size(1), torch::kLong));
      case BlockKind::group_norm:
        return group_norm(x.transpose(1, 2)).transpose(1, 2);
      case BlockKind::gru:
        return x + down(std::get<0>(gru(x)));
      case BlockKind::weight_norm:
        up->weight = own * (own_bias / own.norm(2, 1, true));
        return x + torch::tanh(up(x));
      case BlockKind::batch_norm:
        return batch_norm(x.transpose(1, 2)).transpose(1, 2);
    }
    return x;
  }

  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) {
    const auto b = q.size(0), t = q.size(1), d = q.size(2);
    const auto split = [&](const Tensor& x) {
      return x.view({b, t, heads, d / heads}).transpose(1, 2);
    };
    Tensor y;
    if (options.inner % 2 == 0) {
      y = torch::scaled_dot_product_attention(split(q), split(k), split(v), {}, 0.0, true);
    } else {
      Tensor scores = split(q).matmul(split(k).transpose(-2, -1)) / std::sqrt(double(d / heads));
      scores = scores.masked_fill(torch::ones({t, t}, torch::kBool).tril().logical_not(), -1e9);
      y = torch::softmax(scores, -1).matmul(split(v));
    }
    return y.transpose(1, 2).contiguous().view({b, t, d});
  }

  BlockOptions options;
  int64_t heads;
  nn::Linear up{nullptr}, down{nullptr}, query{nullptr}, key{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::MultiheadAttention multihead{nullptr};
  nn::Conv1d conv_in{nullptr}, conv_out{nullptr};
  nn::Conv2d image_in{nullptr}, image_out{nullptr};
  nn::Embedding table{nullptr};
  nn::GroupNorm group_norm{nullptr};
  nn::BatchNorm1d batch_norm{nullptr};
  nn::GRU gru{nullptr};
  Tensor own, own_bias;
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  explicit NetImpl(const NetOptions& options) : options(options) {
    if (options.tokens) {
      table = register_module("table", nn::Embedding(options.inputs, options.width));
    } else {
      input = register_module("input", nn::Linear(options.inputs, options.width));
    }
    for (const BlockOptions& block : options.blocks) blocks.emplace_back(block, options);
    for (size_t i = 0; i < blocks.size(); ++i) {
      register_module("block" + std::to_string(i), blocks[i]);
    }
    if (options.tie != Tie::transposed_table) {
      head = register_module(
          "head",
          nn::Linear(
              nn::LinearOptions(options.width, options.inputs).bias(options.tie == Tie::none)));
    }
    switch (options.tie) {
      case Tie::head_takes_table:
        head->weight = table->weight;
        left_behind.push_back("head.weight");
        break;
      case Tie::table_has_two_names:
        register_parameter("tied", table->weight);
        break;
      case Tie::block_takes_weights:
        blocks[1]->up->weight = blocks[0]->up->weight;
        left_behind.push_back("block1.up.weight");
        break;
      case Tie::block_has_two_names:
        register_module("again", blocks[0]);
        break;
      default:
        break;
    }
    for (size_t i = 0; i < blocks.size(); ++i) {  // computed in forward
      if (blocks[i]->options.kind == BlockKind::weight_norm) {
        left_behind.push_back("block" + std::to_string(i) + ".up.weight");
        if (options.tie == Tie::block_has_two_names && i == 0) {
          left_behind.push_back("again.up.weight");
        }
      }
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor h = options.tokens ? table(x) : torch::tanh(input(x));
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (ends_at && i >= *ends_at) break;
      if (i != left_out) h = blocks[i](h);
      if (behind_block) behind_block(i, h);
    }
    if (options.tie == Tie::block_has_two_names || options.tie == Tie::block_runs_twice) {
      h = blocks[0](h);
    }
    return head ? head(h) : torch::matmul(h, table->weight.t());
  }
  NetOptions options;
  nn::Embedding table{nullptr};
  nn::Linear input{nullptr}, head{nullptr};
  std::vector<Block> blocks;
  std::optional<size_t> left_out;  ///< a block that is passed over
  std::optional<size_t> ends_at;   ///< this one and those behind it are
  std::function<void(size_t block, const Tensor& output)> behind_block;  ///< called in forward
  /// Registered tensors that nothing uses, or that are computed.
  std::vector<std::string> left_behind;
};
TORCH_MODULE(Net);

inline std::string to_string(const NetOptions& net) {
  std::ostringstream text;
  text << (net.tokens ? "Embedding(" : "Linear(") << net.inputs << ", " << net.width << ")";
  for (const BlockOptions& block : net.blocks) {
    text << ", " << name_of(block.kind) << "(" << net.width << ", inner " << block.inner
         << (block.bias ? "" : ", no bias") << ")";
  }
  text << "; heads " << net.heads << ", length " << net.length;
  constexpr const char* kTies[] = {"",
                                   "head->weight = table->weight",
                                   "logits = matmul(h, table->weight.t())",
                                   "register_parameter(\"tied\", table->weight)",
                                   "block1->up->weight = block0->up->weight",
                                   "register_module(\"again\", block0), run again at the end",
                                   "block0 runs again at the end"};
  if (net.tie != Tie::none) text << "; " << kTies[static_cast<int>(net.tie)];
  return text.str();
}

}  // namespace history
