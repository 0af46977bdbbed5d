// Gradients averaged over data ranks by c10d's own all-reduce, without a wrapper.
#include "tests/programs_test/small_nets.h"
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

/// c10d's own all-reduce over the data ranks, as programs without a wrapper do.
template <typename Model>
void average_by_hand(Device& device, const Model& model) {
  if (!device.is_parallel()) return;
  const auto group = device.mpu().get_data_parallel_group();
  for (auto& p : model->parameters()) {
    if (!p.grad().defined()) continue;
    std::vector<Tensor> gradients{p.grad()};
    group->allreduce(gradients)->wait();
    p.grad().div_(device.mpu().get_data_parallel_world_size());
  }
}

void gradient_averaging(Device& device) {
  auto model = Device::make(1, [] { return SmallNet(); });
  const auto x_of = [&](int step) { return device.part(numbers({kRows, 7}, step)); };
  device.initialize(model, [&] { model->forward(x_of(0)); });
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor loss = nn::functional::cross_entropy(model->forward(x_of(step)),
                                                      device.part(classes({kRows}, 5, step)));
    loss.backward();
    average_by_hand(device, model);
    device.note_mean("loss", loss);
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(gradient_averaging);

}  // namespace
}  // namespace programs
