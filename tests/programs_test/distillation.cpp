// A student learns from a teacher that stays as it is.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

struct StudentEncoderImpl : nn::Module {
  StudentEncoderImpl()
      : fc1(register_module("fc1", nn::Linear(7, 11))),
        fc2(register_module("fc2", nn::Linear(11, 5))) {}
  Tensor forward(const Tensor& x) { return torch::tanh(fc2(torch::tanh(fc1(x)))); }
  nn::Linear fc1, fc2;
};
TORCH_MODULE(StudentEncoder);

/// A wrapper that shares the encoder with another.
struct WithHeadImpl : nn::Module {
  WithHeadImpl(StudentEncoder shared, int64_t out)
      : encoder(register_module("encoder", shared)),
        head(register_module("head", nn::Linear(5, out))) {}
  Tensor forward(const Tensor& x) { return head(encoder(x)); }
  StudentEncoder encoder;
  nn::Linear head;
};
TORCH_MODULE(WithHead);

/// The student learns what the teacher, which stays as it is, says softly.
void distillation(Device& device) {
  auto teacher = Device::make(3, [] { return WithHead(StudentEncoder(), 10); });
  auto student = Device::make(4, [] { return WithHead(StudentEncoder(), 10); });
  const auto x_of = [&](int step) { return device.part(numbers({6, 7}, 5.0 * step)); };
  device.initialize(teacher, [&] { teacher->forward(x_of(0)); });
  device.initialize(student, [&] { student->forward(x_of(0)); });
  teacher->eval();
  for (auto& p : teacher->parameters()) p.requires_grad_(false);
  Replica replica(device, student);
  torch::optim::AdamW optimizer(student->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    const Tensor x = x_of(step), labels = device.part(classes({6}, 10, step));
    const Tensor wanted = teacher->forward(x);
    const Tensor logits = replica.forward(x);
    const double temperature = 3.0;
    const Tensor soft = torch::kl_div(torch::log_softmax(logits / temperature, 1),
                                      torch::softmax(wanted / temperature, 1), at::Reduction::Sum) /
                        double(x.size(0)) * temperature * temperature;
    const Tensor loss = 0.5 * soft + 0.5 * nn::functional::cross_entropy(logits, labels) +
                        0.1 * torch::mse_loss(logits, wanted);
    optimizer.zero_grad();
    loss.backward();
    device.note_mean("loss", loss);
    device.note_gradients("student", *student);
    optimizer.step();
  }
  device.note_model("student", *student);
  device.note_state("teacher", *teacher);
}
TRAINING_PROGRAM(distillation);

}  // namespace
}  // namespace programs
