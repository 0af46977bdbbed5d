// REINFORCE (Williams 1992): actions drawn from what the policy says, episodes of several steps,
// the returns discounted and normalized, and the log of what was drawn.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

constexpr int64_t kGames = 6, kTurns = 4, kSensors = 5, kMoves = 3;

struct PolicyImpl : nn::Module {
  Tensor forward(const Tensor& state) { return torch::softmax(out(torch::tanh(in(state))), -1); }
  nn::Linear in{register_module("in", nn::Linear(kSensors, 13))};
  nn::Linear out{register_module("out", nn::Linear(13, kMoves))};
};
TORCH_MODULE(Policy);

/// Where an action leads to; nothing in it is learned.
Tensor next_state(const Tensor& state, const Tensor& action) {
  return torch::sin(state * 1.7 + (action.to(torch::kDouble) + 1).unsqueeze(1) * 0.9);
}

void reinforce(Device& device) {
  auto policy = Device::make(8, [] { return Policy(); });
  const auto begin = [&](int episode) {
    return device.part(numbers({kGames, kSensors}, 7.0 * episode));
  };
  device.initialize(policy, [&] { policy->forward(begin(0)); });
  Replica replica(device, policy);
  torch::optim::Adam optimizer(policy->parameters(), torch::optim::AdamOptions(1e-2));
  // LibTorch draws row by row, so that a data rank would have the first rows' numbers: there the
  // program reads a table of its own.
  at::Generator generator = at::detail::createCPUGenerator(11);
  const auto draw = [&](const Tensor& chances, int turn) {
    if (device.mesh().data == 1) {
      return torch::multinomial(chances, 1, /*replacement=*/true, generator).squeeze(1);
    }
    const Tensor level = device.part((numbers({kGames, 1}, 31.0 * turn) + 1) / 2);
    return (chances.cumsum(1) < level).sum(1).clamp_max(kMoves - 1);
  };
  for (int episode = 0; episode < 3; ++episode) {
    Tensor state = begin(episode);
    Tensors logs, rewards;
    for (int t = 0; t < kTurns; ++t) {
      const Tensor chances = replica.forward(state);
      const Tensor action = oslo::full_tensor(draw(chances.detach(), kTurns * episode + t));
      logs.push_back(torch::log(chances.gather(1, action.unsqueeze(1)).squeeze(1)));
      state = next_state(state, action);
      rewards.push_back(state.sum(1) - 0.1 * action.to(torch::kDouble));
      device.note_rows("action", action);
    }
    Tensors returns(kTurns);
    Tensor value = torch::zeros_like(rewards[0]);
    for (int t = kTurns - 1; t >= 0; --t) returns[t] = value = rewards[t] + 0.9 * value;
    const Tensor all = torch::stack(returns);
    const Tensor advantage = (all - all.mean(0)) / (all.std(0) + 1e-6);  // of each episode
    const Tensor loss = -(torch::stack(logs) * advantage).sum(0).mean();
    optimizer.zero_grad();
    loss.backward();
    device.note_mean("loss", loss);
    device.note_gradients("policy", *policy);
    optimizer.step();
  }
  device.note_model("policy", *policy);
}
TRAINING_PROGRAM(reinforce);

}  // namespace
}  // namespace programs
