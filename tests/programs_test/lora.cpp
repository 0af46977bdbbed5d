// Frozen weights with a trained difference of low rank beside them.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

/// A frozen layer and a trained difference of low rank beside it.
struct LoraLinearImpl : nn::Module {
  LoraLinearImpl(int64_t in, int64_t out, int64_t r, double alpha)
      : base(register_module("base", nn::Linear(in, out))), scaling(alpha / double(r)) {
    base->weight.requires_grad_(false);
    base->bias.requires_grad_(false);
    lora_a = register_parameter("lora_a", numbers({r, in}, 4) * 0.3);
    lora_b = register_parameter("lora_b", torch::zeros({out, r}));
  }
  Tensor forward(const Tensor& x) {
    return base(x) + torch::matmul(torch::matmul(x, lora_a.t()), lora_b.t()) * scaling;
  }
  /// The difference goes into the frozen weight.
  void merge() {
    const torch::NoGradGuard no_grad;
    base->weight.add_(torch::matmul(lora_b, lora_a), scaling);
    lora_b.zero_();
  }
  nn::Linear base;
  Tensor lora_a, lora_b;
  double scaling;
};
TORCH_MODULE(LoraLinear);

struct LoraNetImpl : nn::Module {
  LoraNetImpl()
      : embed(register_module("embed", nn::Embedding(17, 10))),
        q(register_module("q", LoraLinear(10, 10, 2, 4.0))),
        v(register_module("v", LoraLinear(10, 10, 2, 4.0))),
        up(register_module("up", nn::Linear(10, 23))),
        down(register_module("down", nn::Linear(23, 10))),
        head(register_module("head", nn::Linear(10, 17))) {
    for (auto& item : named_parameters()) {
      if (item.key().find("lora_") == std::string::npos) item.value().set_requires_grad(false);
    }
  }
  Tensor forward(const Tensor& tokens) {
    const Tensor x = embed(tokens);
    const Tensor attention = torch::softmax(torch::matmul(q(x), x.transpose(1, 2)), -1);
    const Tensor y = x + torch::matmul(attention, v(x));
    return head(y + down(torch::gelu(up(y))));
  }
  nn::Embedding embed;
  LoraLinear q, v;
  nn::Linear up, down, head;
};
TORCH_MODULE(LoraNet);

void train_lora(Device& device, bool cut_own) {
  auto model = Device::make(2, [] { return LoraNet(); });
  const auto tokens = [&](int step) { return device.part(classes({4, 5}, 17, step)); };
  device.initialize(
      model, [&] { model->forward(tokens(0)); },
      [&](oslo::InitializeOptions& how) { how.cut_own_parameters = cut_own; });
  Tensors trained;
  for (const auto& p : model->parameters()) {
    if (p.requires_grad()) trained.push_back(p);
  }
  EXPECT_EQ(trained.size(), 4u);
  torch::optim::AdamW optimizer(trained, torch::optim::AdamWOptions(1e-2));
  Replica replica(device, model);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const Tensor loss = nn::functional::cross_entropy(replica.forward(tokens(step)).flatten(0, 1),
                                                      tokens(step + 1).flatten());
    loss.backward();
    device.note_mean("loss", loss);
    device.note_gradients("model", *model);
    device.note("norm", torch::nn::utils::clip_grad_norm_(trained, 0.1));
    optimizer.step();
  }
  device.note_state("before merging", *model);
  const torch::NoGradGuard no_grad;
  device.note_rows("before merging", model->forward(tokens(9)));
  model->q->merge();
  model->v->merge();
  device.note_rows("after merging", model->forward(tokens(9)));
  device.note_state("after merging", *model);
}
void lora(Device& device) {
  train_lora(device, false);
}
TRAINING_PROGRAM(lora);
void lora_of_cut_parameters(Device& device) {
  train_lora(device, true);
}
TRAINING_PROGRAM(lora_of_cut_parameters);

}  // namespace
}  // namespace programs
