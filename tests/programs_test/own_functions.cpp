// A user's linear function, on weights that are cut by hand in either way.
#include "tests/models/own_functions.h"

#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;
using models::own::LinearFunction;

struct OwnLinearsImpl : nn::Module {
  OwnLinearsImpl()
      : up(register_module("up", nn::Linear(7, 10))),
        mid(register_module("mid", nn::Linear(10, 10))),
        down(register_module("down", nn::Linear(10, 5))) {
    w = register_parameter("w", numbers({10, 10}, 4) * 0.3);
    b = register_parameter("b", numbers({10}, 5));
  }
  /// What `up` gives is whole where it is cut by row; the bias b is whole in any case.
  Tensor forward(const Tensor& x) {
    const Tensor h = torch::tanh(LinearFunction::apply(up(x), w, b));
    return down(torch::tanh(LinearFunction::apply(h, mid->weight, mid->bias)));
  }
  nn::Linear up, mid, down;
  Tensor w, b;
};
TORCH_MODULE(OwnLinears);

void train(Device& device, const std::map<std::string, std::string>& styles) {
  auto model = Device::make(2, [] { return OwnLinears(); });
  const auto x_of = [&](int step) { return device.part(numbers({6, 7}, step)); };
  // Hooks on a parameter that stays whole: set before, and after.
  model->b.register_hook([](const Tensor& gradient) { return gradient * 2; });
  device.initialize(
      model, [&] { model->forward(x_of(0)); },
      [&](oslo::InitializeOptions& how) {
        how.policies = {oslo::policy_for<OwnLinearsImpl>({styles.begin(), styles.end()})};
      });
  model->b.register_hook([](const Tensor& gradient) { return gradient.clamp(-0.05, 0.05); });
  Replica replica(device, model);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
    const Tensor loss = replica.forward(x_of(step)).pow(2).mean();
    loss.backward();
    device.note_mean("loss", loss);
    ASSERT_EQ(oslo::is_placed(model->b.grad()), device.is_parallel() && device.mesh().zero == 3);
    device.note_gradients("model", *model);
    device.note("norm", torch::nn::utils::clip_grad_norm_(model->parameters(), 0.2));
    optimizer.step();
  }
  device.note_model("model", *model);
}

void own_linear_cut_by_input(Device& device) {
  train(device, {{"up", "row"}, {"w", "shard(1)"}, {"mid", "column"}, {"down", "row"}});
}
TRAINING_PROGRAM(own_linear_cut_by_input);

void own_linear_cut_by_output(Device& device) {
  train(device, {{"up", "row"}, {"w", "shard(0)"}, {"mid", "row"}, {"down", "column"}});
}
TRAINING_PROGRAM(own_linear_cut_by_output);

}  // namespace
}  // namespace programs
