// What a model of load_exported costs beside the same model written in C++: the same operators, on
// the same weights, with one thread.
//
//   bench_exported      the usual Google Benchmark table
//
// The model is the GPT-2 of tests/exported_model_test, which is so small (width 12) that a step is
// mostly calls: operators that take longer hide what is between them. Each benchmark takes turns
// (turns.h); both sides must have the same loss to begin with. "cut" is rank 0 of
// two, with a group that does not communicate.
#include <benchmark/benchmark.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "benchmarks/turns.h"

namespace {

using torch::Tensor;

constexpr int64_t kWords = 37, kWidth = 12, kHeads = 3, kLength = 8, kTime = 6;

/// Weights under the names that the file has. Layers are called by the operator that the exported
/// program calls, where LibTorch's own forward of a linear layer calls three.
Tensor through(const torch::nn::Linear& layer, const Tensor& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

struct AttentionImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, const Tensor& mask) {
    const int64_t b = x.size(0), t = x.size(1), c = x.size(2);
    const auto parts = through(c_attn, x).split(c, 2);
    const auto heads = [&](const Tensor& part) {
      return part.view({b, t, kHeads, c / kHeads}).transpose(1, 2);
    };
    const Tensor q = heads(parts[0]), k = heads(parts[1]), v = heads(parts[2]);
    const Tensor scores = torch::matmul(q, k.transpose(-2, -1)) * 0.5;
    const Tensor seen = mask.slice(0, 0, t).slice(1, 0, t).logical_not();
    const Tensor weights =
        scores.masked_fill(seen, -std::numeric_limits<double>::infinity()).softmax(-1);
    return through(c_proj, torch::matmul(weights, v).transpose(1, 2).reshape({b, t, c}));
  }
  torch::nn::Linear c_attn = register_module("c_attn", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear c_proj = register_module("c_proj", torch::nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Attention);

struct MlpImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return through(c_proj, torch::gelu(through(c_fc, x), "tanh")); }
  torch::nn::Linear c_fc = register_module("c_fc", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear c_proj = register_module("c_proj", torch::nn::Linear(4 * kWidth, kWidth));
};
TORCH_MODULE(Mlp);

torch::nn::LayerNorm norm() {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
}

struct BlockImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, const Tensor& mask) {
    const Tensor y = x + attn->forward(ln_1->forward(x), mask);
    return y + mlp->forward(ln_2->forward(y));
  }
  torch::nn::LayerNorm ln_1 = register_module("ln_1", norm());
  Attention attn = register_module("attn", Attention());
  torch::nn::LayerNorm ln_2 = register_module("ln_2", norm());
  Mlp mlp = register_module("mlp", Mlp());
};
TORCH_MODULE(Block);

struct Gpt2Impl : torch::nn::Module {
  Gpt2Impl() {
    for (int i = 0; i < 2; ++i) h->push_back(Block());
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = wte->forward(tokens) + wpe->forward(torch::arange(tokens.size(1)));
    for (const auto& block : *h) x = block->as<Block>()->forward(x, mask);
    return torch::linear(ln_f->forward(x), wte->weight);
  }
  torch::nn::Embedding wte = register_module("wte", torch::nn::Embedding(kWords, kWidth));
  torch::nn::Embedding wpe = register_module("wpe", torch::nn::Embedding(kLength, kWidth));
  torch::nn::ModuleList h = register_module("h", torch::nn::ModuleList());
  torch::nn::LayerNorm ln_f = register_module("ln_f", norm());
  Tensor mask = register_buffer("mask", torch::ones({kLength, kLength}, torch::kBool).tril());
};
TORCH_MODULE(Gpt2);

/// A model, what it computes with, and its optimizer.
template <typename Model, typename Forward>
struct Side {
  Side(Model of, Forward call, int64_t rows, bool cut) : model(std::move(of)), forward(call) {
    tokens = torch::arange(rows * kTime).mul(7).remainder(kWords).view({rows, kTime});
    if (!cut) return;
    oslo::InitializeOptions how;
    how.world = oslo::World::fake(0, 2);
    how.example_inputs = [this] { forward(model, tokens); };
    oslo::initialize(model, oslo::Config::parse(R"({"model_parallelism":
                     {"enable": true, "tensor_parallel_size": 2}})"),
                     how);
  }

  Tensor loss() {
    return torch::nn::functional::cross_entropy(forward(model, tokens).flatten(0, 1),
                                                tokens.flatten());
  }
  void backward() {
    optimizer.zero_grad();
    loss().backward();
  }
  void step() {
    backward();
    optimizer.step();
  }

  Model model;
  Forward forward;
  Tensor tokens;
  torch::optim::AdamW optimizer{model->parameters(), torch::optim::AdamWOptions(1e-3)};
};

Gpt2 twin_of(oslo::ExportedModule& model) {
  Gpt2 twin;
  twin->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  const auto parameters = twin->named_parameters();
  for (const auto& item : model.named_parameters()) parameters[item.key()].copy_(item.value());
  return twin;
}

enum class Part { forward, backward, step };

void run(benchmark::State& state, Part part, bool cut) {
  at::set_num_threads(1);
  const std::string file = OSLO_SOURCE_DIR "/tests/data/exported/gpt2.pt2";
  const auto exported = oslo::load_exported(file);
  const auto plain = [](const Gpt2& model, const Tensor& x) { return model.ptr()->forward(x); };
  const auto ours = [](const std::shared_ptr<oslo::ExportedModule>& model, const Tensor& x) {
    return model->forward(x).toTensor();
  };
  const int64_t rows = state.range(0);
  Side<Gpt2, decltype(plain)> written(twin_of(*exported), plain, rows, cut);
  Side<std::shared_ptr<oslo::ExportedModule>, decltype(ours)> read(exported, ours, rows, cut);
  // Without other ranks the losses of cut models are numbers without a meaning.
  if (!cut && !torch::allclose(written.loss(), read.loss())) {
    throw std::runtime_error("the two models are different ones");
  }
  bench::take_turns(
      state, torch::kCPU, 10,
      [&] {
        if (part == Part::forward) {
          benchmark::DoNotOptimize(written.loss());
        } else {
          part == Part::backward ? written.backward() : written.step();
        }
      },
      [&] {
        if (part == Part::forward) {
          benchmark::DoNotOptimize(read.loss());
        } else {
          part == Part::backward ? read.backward() : read.step();
        }
      });
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const bool cut : {false, true}) {
    const std::string where = cut ? "cut/" : "whole/";
    for (const auto& [name, part] :
         {std::pair("forward", Part::forward), std::pair("backward", Part::backward),
          std::pair("step", Part::step)}) {
      benchmark::RegisterBenchmark((where + name).c_str(), run, part, cut)
          ->ArgName("rows")
          ->Arg(6)
          ->Arg(64)
          ->Iterations(200);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
