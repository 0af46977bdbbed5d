// Shapes changed in place: an image captioner whose features get a dimension by unsqueeze_.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

struct CaptionerImpl : nn::Module {
  static constexpr int64_t kVocab = 19, kEmbed = 10, kHidden = 11;
  CaptionerImpl()
      : conv(register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 7, 3).stride(2)))),
        fc(register_module("fc", nn::Linear(7, kEmbed))),
        embed(register_module("embed", nn::Embedding(kVocab, kEmbed))),
        lstm(register_module("lstm", nn::LSTM(nn::LSTMOptions(kEmbed, kHidden).batch_first(true)))),
        linear(register_module("linear", nn::Linear(kHidden, kVocab))) {}
  Tensor encode(const Tensor& images) {
    Tensor features = torch::adaptive_avg_pool2d(torch::gelu(conv(images)), {1, 1});
    features.squeeze_(-1).squeeze_(-1);
    return fc(features);
  }
  Tensor forward(const Tensor& images, const Tensor& captions) {
    Tensor features = encode(images);
    features.unsqueeze_(1);
    Tensor embeddings = embed(captions);
    embeddings = torch::cat({features, embeddings}, 1);
    return linear(std::get<0>(lstm(embeddings)));
  }
  /// Greedy decoding, a word at a time.
  Tensor sample(const Tensor& images, int64_t length) {
    Tensor input = encode(images).unsqueeze_(1);
    std::tuple<Tensor, Tensor> state{torch::zeros({1, images.size(0), kHidden}),
                                     torch::zeros({1, images.size(0), kHidden})};
    Tensors words;
    for (int64_t i = 0; i < length; ++i) {
      auto [hidden, next] = lstm(input, state);
      state = next;
      const Tensor best = linear(hidden.squeeze(1)).argmax(1);
      words.push_back(best);
      input = embed(best);
      input.unsqueeze_(1);
    }
    return torch::stack(words, 1);
  }
  nn::Conv2d conv;
  nn::Linear fc;
  nn::Embedding embed;
  nn::LSTM lstm;
  nn::Linear linear;
};
TORCH_MODULE(Captioner);

void captioning(Device& device) {
  auto model = Device::make(1, [] { return Captioner(); });
  const auto images = [&](int step) { return device.part(numbers({4, 3, 9, 9}, step)); };
  const auto captions = [&](int step) {
    return device.part(classes({4, 5}, Captioner::Impl::kVocab, step));
  };
  device.initialize(model, [&] { model->forward(images(0), captions(0)); });
  Replica replica(device, model);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    using torch::indexing::Slice;
    const Tensor target = captions(step);
    const Tensor out = replica.forward(images(step), target.index({Slice(), Slice(0, 4)}));
    const Tensor loss =
        nn::functional::cross_entropy(out.reshape({-1, Captioner::Impl::kVocab}), target.flatten());
    loss.backward();
    device.note_mean("loss", loss);
    device.note_rows("output", out);
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_model("model", *model);
  model->eval();
  const torch::NoGradGuard no_grad;
  device.note_rows("captions", model->sample(images(8), 4));
}
TRAINING_PROGRAM(captioning);

/// Every view operator that works in place, on what cut layers return.
struct InPlaceShapesImpl : nn::Module {
  InPlaceShapesImpl()
      : a(register_module("a", nn::Linear(5, 9))),
        b(register_module("b", nn::Linear(9, 7))),
        c(register_module("c", nn::Conv1d(nn::Conv1dOptions(9, 7, 1)))) {}
  Tensor forward(const Tensor& x) {
    Tensor h = a(x) * 1.0;                             // [6, 9], cut where a is
    h.unsqueeze_(0);                                   // [1, 6, 9]
    h.transpose_(1, 2);                                // [1, 9, 6]
    const Tensor by_rows = torch::tanh(c(h.clone()));  // [1, 7, 6]
    h.swapaxes_(0, 2);                                 // [6, 9, 1]
    h.squeeze_(2);                                     // [6, 9]
    h.t_();                                            // [9, 6]
    h.mul_(0.5);
    h.swapdims_(0, 1);  // [6, 9]
    return b(torch::tanh(h)) + by_rows.squeeze(0).t();
  }
  nn::Linear a, b;
  nn::Conv1d c;
};
TORCH_MODULE(InPlaceShapes);

void shapes_in_place(Device& device) {
  auto model = Device::make(2, [] { return InPlaceShapes(); });
  const auto x_of = [&](int step) { return device.part(numbers({6, 5}, step)); };
  device.initialize(model, [&] { model->forward(x_of(0)); });
  Replica replica(device, model);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const Tensor out = replica.forward(x_of(step));
    out.pow(2).mean().backward();
    device.note_rows("output", out);
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(shapes_in_place);

}  // namespace
}  // namespace programs
