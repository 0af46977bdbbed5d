// Two models, two optimizers, and one of them sees the other's output detached: a DCGAN; an
// autoencoder of two models.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

/// Statistics of a batch are each data rank's own, so under data parallelism it is group norm.
nn::AnyModule some_norm(int64_t channels, bool batch) {
  if (batch) return nn::AnyModule(nn::BatchNorm2d(channels));
  return nn::AnyModule(nn::GroupNorm(1, channels));
}

struct GeneratorImpl : nn::Module {
  GeneratorImpl(int64_t noise, bool batch_norm)
      : conv1(nn::ConvTranspose2dOptions(noise, 10, 3).bias(false)),
        norm1(some_norm(10, batch_norm)),
        conv2(nn::ConvTranspose2dOptions(10, 7, 3).stride(2).padding(1).bias(false)),
        norm2(some_norm(7, batch_norm)),
        conv3(nn::ConvTranspose2dOptions(7, 1, 4).stride(2).padding(1).bias(false)) {
    register_module("conv1", conv1);
    register_module("norm1", norm1.ptr());
    register_module("conv2", conv2);
    register_module("norm2", norm2.ptr());
    register_module("conv3", conv3);
  }
  Tensor forward(Tensor x) {
    x = torch::relu(norm1.forward(conv1(x)));
    x = torch::relu(norm2.forward(conv2(x)));
    return torch::tanh(conv3(x));
  }
  nn::ConvTranspose2d conv1;
  nn::AnyModule norm1;
  nn::ConvTranspose2d conv2;
  nn::AnyModule norm2;
  nn::ConvTranspose2d conv3;
};
TORCH_MODULE(Generator);

nn::Sequential make_discriminator(bool batch_norm) {
  nn::Sequential layers(nn::Conv2d(nn::Conv2dOptions(1, 7, 4).stride(2).padding(1).bias(false)),
                        nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Conv2d(nn::Conv2dOptions(7, 11, 3).stride(2).padding(1).bias(false)));
  layers->push_back(some_norm(11, batch_norm));
  layers->push_back(nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)));
  layers->push_back(nn::Conv2d(nn::Conv2dOptions(11, 1, 3).bias(false)));
  layers->push_back(nn::Sigmoid());
  return layers;
}

void dcgan(Device& device) {
  constexpr int64_t kNoise = 9, kBatch = 6;
  const bool batch_norm = device.mesh().data == 1;
  auto generator = Device::make(1, [&] { return Generator(kNoise, batch_norm); });
  auto discriminator = Device::make(2, [&] { return make_discriminator(batch_norm); });
  const auto noise_of = [&](int step) {
    return device.part(numbers({kBatch, kNoise, 1, 1}, 11.0 * step));
  };
  device.initialize(generator, [&] { generator->forward(noise_of(0)); });
  device.initialize(discriminator, [&] {
    discriminator->forward(device.part(numbers({kBatch, 1, 10, 10}, 0)));
  });
  Replica g(device, generator);
  Replica d(device, discriminator);
  torch::optim::Adam g_optimizer(generator->parameters(),
                                 torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}));
  torch::optim::Adam d_optimizer(discriminator->parameters(),
                                 torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}));

  for (int step = 0; step < 3; ++step) {
    // Train the discriminator with real images, then with fake ones.
    discriminator->zero_grad();
    const Tensor real_images = device.part(numbers({kBatch, 1, 10, 10}, 100.0 + step));
    const Tensor real_output = d.forward(real_images).reshape(-1);
    const Tensor d_loss_real =
        torch::binary_cross_entropy(real_output, torch::full_like(real_output, 0.9));
    d_loss_real.backward();
    const Tensor fake_images = g.forward(noise_of(step));
    const Tensor fake_output = d.forward(fake_images.detach()).reshape(-1);
    const Tensor d_loss_fake =
        torch::binary_cross_entropy(fake_output, torch::zeros_like(fake_output));
    d_loss_fake.backward();
    device.note_mean("loss of the discriminator", d_loss_real + d_loss_fake);
    device.note_gradients("discriminator", *discriminator);
    d_optimizer.step();

    // Train the generator through the discriminator.
    generator->zero_grad();
    const Tensor judged = d.forward(fake_images).reshape(-1);
    const Tensor g_loss = torch::binary_cross_entropy(judged, torch::ones_like(judged));
    g_loss.backward();
    device.note_mean("loss of the generator", g_loss);
    device.note_rows("fake images", fake_images);
    device.note_gradients("generator", *generator);
    g_optimizer.step();
  }
  device.note_model("generator", *generator);
  device.note_model("discriminator", *discriminator);
}
TRAINING_PROGRAM(dcgan);

/// One model hands its output to the other, and one backward goes through both.
struct EncoderImpl : nn::Module {
  EncoderImpl()
      : fc1(register_module("fc1", nn::Linear(7, 11))),
        fc2(register_module("fc2", nn::Linear(11, 5))) {}
  Tensor forward(const Tensor& x) { return torch::tanh(fc2(torch::tanh(fc1(x)))); }
  nn::Linear fc1, fc2;
};
TORCH_MODULE(Encoder);

/// Two losses on two parallel models, added up before one backward.
void two_models_one_loss(Device& device) {
  auto encoder = Device::make(5, [] { return Encoder(); });
  auto decoder = Device::make(
      6, [] { return nn::Sequential(nn::Linear(5, 11), nn::Tanh(), nn::Linear(11, 7)); });
  const auto x_of = [&](int step) { return device.part(numbers({6, 7}, 3.0 * step)); };
  device.initialize(encoder, [&] { encoder->forward(x_of(0)); });
  device.initialize(decoder, [&] { decoder->forward(device.part(numbers({6, 5}, 1))); });
  Replica e(device, encoder);
  Replica d(device, decoder);
  std::vector<Tensor> both = encoder->parameters();
  for (const auto& p : decoder->parameters()) both.push_back(p);
  torch::optim::SGD optimizer(both, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  for (int step = 0; step < 3; ++step) {
    const Tensor x = x_of(step);
    optimizer.zero_grad();
    const Tensor code = e.forward(x);
    const Tensor loss = torch::mse_loss(d.forward(code), x) + 0.01 * code.pow(2).mean();
    loss.backward();
    device.note_mean("loss", loss);
    // Over the gradients of both models at once.
    device.note("norm", torch::nn::utils::clip_grad_norm_(both, 0.3));
    optimizer.step();
  }
  device.note_model("encoder", *encoder);
  device.note_model("decoder", *decoder);
}
TRAINING_PROGRAM(two_models_one_loss);

}  // namespace
}  // namespace programs
