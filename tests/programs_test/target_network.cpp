// A target network follows another by a moving average: DQN, DDPG, and an actor with twin critics.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

struct QNetworkImpl : nn::Module {
  QNetworkImpl(int64_t in, int64_t out)
      : fc1(register_module("fc1", nn::Linear(in, 13))),
        fc2(register_module("fc2", nn::Linear(13, 11))),
        fc3(register_module("fc3", nn::Linear(11, out))) {}
  Tensor forward(Tensor x) {
    x = torch::tanh(fc1(x));
    x = torch::tanh(fc2(x));
    return fc3(x);
  }
  nn::Linear fc1, fc2, fc3;
};
TORCH_MODULE(QNetwork);

template <typename Model>
void copy_weights(const Model& from, const Model& to) {
  const torch::NoGradGuard no_grad;
  auto target = to->named_parameters();
  for (const auto& item : from->named_parameters()) target[item.key()].copy_(item.value());
}

template <typename Model>
void soft_update(const Model& target, const Model& online, double tau) {
  const torch::NoGradGuard no_grad;
  auto t = target->parameters();
  const auto q = online->parameters();
  for (size_t i = 0; i < t.size(); ++i) t[i].mul_(1.0 - tau).add_(q[i], tau);
}

constexpr int64_t kStates = 5, kActions = 4, kBatch = 6;

void dqn(Device& device) {
  auto online = Device::make(1, [] { return QNetwork(kStates, kActions); });
  auto target = Device::make(2, [] { return QNetwork(kStates, kActions); });
  const auto states = [&](double start) { return device.part(numbers({kBatch, kStates}, start)); };
  device.initialize(online, [&] { online->forward(states(0)); });
  device.initialize(target, [&] { target->forward(states(0)); });
  copy_weights(online, target);
  target->eval();
  Replica replica(device, online);
  torch::optim::Adam optimizer(online->parameters(), torch::optim::AdamOptions(1e-2));
  for (int step = 0; step < 4; ++step) {
    const Tensor action = device.part(classes({kBatch, 1}, kActions, step));
    const Tensor reward = device.part(numbers({kBatch}, 50.0 + step));
    const Tensor done = device.part(classes({kBatch}, 2, step)).to(torch::kDouble);
    const Tensor q = replica.forward(states(step)).gather(1, action).squeeze(1);
    Tensor wanted;
    {
      const torch::NoGradGuard no_grad;
      const Tensor next = std::get<0>(target->forward(states(20.0 + step)).max(1));
      wanted = reward + 0.9 * next * (1 - done);
    }
    const Tensor loss = torch::smooth_l1_loss(q, wanted.detach());
    optimizer.zero_grad();
    loss.backward();
    for (auto& p : online->parameters()) p.grad().clamp_(-0.05, 0.05);
    optimizer.step();
    device.note_mean("loss", loss);
    device.note_gradients("online", *online);
    if (step % 2 == 1) copy_weights(online, target);
    soft_update(target, online, 0.1);
    device.note_state("target", *target);
  }
  device.note_state("online", *online);
}
TRAINING_PROGRAM(dqn);

/// `t = 0.9 t + 0.1 q` as one expression with a new tensor, and the whole of it copied in.
void moving_average(Device& device) {
  auto model = Device::make(3, [] { return QNetwork(kStates, kActions); });
  auto average = Device::make(3, [] { return QNetwork(kStates, kActions); });
  const auto states = [&](double start) { return device.part(numbers({kBatch, kStates}, start)); };
  // The optimizer is made before, the average never sees data before it is asked.
  torch::optim::RMSprop optimizer(model->parameters(), torch::optim::RMSpropOptions(1e-3));
  device.initialize(model, [&] { model->forward(states(0)); });
  device.initialize(average, [&] { average->forward(states(0)); });
  Replica replica(device, model);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor loss = torch::mse_loss(replica.forward(states(step)),
                                        device.part(numbers({kBatch, kActions}, 30.0 + step)));
    loss.backward();
    optimizer.step();
    const torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) {
      Tensor kept = average->named_parameters()[item.key()];
      kept.copy_(0.75 * kept + 0.25 * item.value());
      // The same, seen through lerp, and how far apart the two are.
      kept.lerp_(item.value(), 0.125);
      device.note("distance of " + item.key(), (kept - item.value()).pow(2).sum());
    }
    device.note_rows("output of the average", average->forward(states(70.0)));
    device.note_state("average", *average);
  }
}
TRAINING_PROGRAM(moving_average);

struct ActorImpl : nn::Module {
  ActorImpl()
      : fc(register_module("fc", nn::Linear(kStates, 11))),
        mean(register_module("mean", nn::Linear(11, 3))),
        log_std(register_module("log_std", nn::Linear(11, 3))) {}
  /// An action drawn from `noise`, and its log probability.
  std::tuple<Tensor, Tensor> forward(const Tensor& state, const Tensor& noise) {
    const Tensor hidden = torch::tanh(fc(state));
    const Tensor mu = mean(hidden), sigma = torch::exp(torch::clamp(log_std(hidden), -20, 2));
    const Tensor raw = mu + sigma * noise, action = torch::tanh(raw);
    const Tensor log_probability = -0.5 * noise.pow(2) - sigma.log() - 0.5 * std::log(2 * M_PI) -
                                   torch::log(1 - action.pow(2) + 1e-6);
    return {action, log_probability.sum(-1, true)};
  }
  nn::Linear fc, mean, log_std;
};
TORCH_MODULE(Actor);

struct TwinCriticImpl : nn::Module {
  TwinCriticImpl()
      : q1(register_module("q1", QNetwork(kStates + 3, 1))),
        q2(register_module("q2", QNetwork(kStates + 3, 1))) {}
  std::tuple<Tensor, Tensor> forward(const Tensor& state, const Tensor& action) {
    const Tensor both = torch::cat({state, action}, -1);
    return {q1(both), q2(both)};
  }
  QNetwork q1, q2;
};
TORCH_MODULE(TwinCritic);

void soft_actor_critic(Device& device) {
  auto actor = Device::make(4, [] { return Actor(); });
  auto critic = Device::make(5, [] { return TwinCritic(); });
  auto target = Device::make(6, [] { return TwinCritic(); });
  const auto states = [&](double start) { return device.part(numbers({kBatch, kStates}, start)); };
  const auto of_actions = [&](double start) { return device.part(numbers({kBatch, 3}, start)); };
  device.initialize(actor, [&] { actor->forward(states(0), of_actions(0)); });
  device.initialize(critic, [&] { critic->forward(states(0), of_actions(0)); });
  device.initialize(target, [&] { target->forward(states(0), of_actions(0)); });
  copy_weights(critic, target);
  Replica pi(device, actor);
  Replica q(device, critic, oslo::DDPOptions().find_unused_parameters(true));
  Tensor log_alpha = torch::zeros({1}, torch::requires_grad());
  torch::optim::Adam actor_optimizer(actor->parameters(), torch::optim::AdamOptions(3e-3));
  torch::optim::Adam critic_optimizer(critic->parameters(), torch::optim::AdamOptions(3e-3));
  for (int step = 0; step < 3; ++step) {
    const Tensor state = states(step), next = states(40.0 + step),
                 reward = of_actions(9.0 + step).select(1, 0).unsqueeze(1);
    const double alpha = log_alpha.exp().item<double>();
    Tensor wanted;
    {
      const torch::NoGradGuard no_grad;
      const auto [next_action, log_p] = actor->forward(next, of_actions(60.0 + step));
      const auto [t1, t2] = target->forward(next, next_action);
      wanted = reward + 0.99 * (torch::min(t1, t2) - alpha * log_p);
    }
    const auto [q1, q2] = q.forward(state, of_actions(80.0 + step));
    const Tensor critic_loss = torch::mse_loss(q1, wanted) + torch::mse_loss(q2, wanted);
    critic_optimizer.zero_grad();
    critic_loss.backward();
    device.note_mean("loss of the critics", critic_loss);
    device.note_gradients("critic", *critic);
    critic_optimizer.step();

    const auto [action, log_p] = pi.forward(state, of_actions(20.0 + step));
    // The critics judge; their own gradients are of no use and are cleared before their next step.
    const auto [p1, p2] = critic->forward(state, action);
    const Tensor actor_loss = (alpha * log_p - torch::min(p1, p2)).mean();
    actor_optimizer.zero_grad();
    actor_loss.backward();
    device.note_mean("loss of the actor", actor_loss);
    device.note_gradients("actor", *actor);
    actor_optimizer.step();
    soft_update(target, critic, 0.05);
    device.note_state("target", *target);
  }
  device.note_state("actor", *actor);
  device.note_state("critic", *critic);
}
TRAINING_PROGRAM(soft_actor_critic);

}  // namespace
}  // namespace programs
