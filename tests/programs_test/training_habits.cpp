// What people do around a model: accumulation, schedules, two optimizers over one model.
#include "tests/programs_test/small_nets.h"
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

void gradient_accumulation(Device& device) {
  auto model = Device::make(2, [] { return SmallNet(); });
  const auto x_of = [&](int step) { return numbers({kRows, 7}, step); };
  device.initialize(model, [&] { model->forward(x_of(0)); });
  Replica replica(device, model);
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(1e-2).amsgrad(true));
  constexpr int kMicroBatches = 3;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
    double total = 0;
    for (int i = 0; i < kMicroBatches; ++i) {
      const auto quiet = i + 1 < kMicroBatches ? replica.no_sync() : nullptr;
      const Tensor x = device.part(x_of(step).chunk(kMicroBatches)[i]);
      const Tensor y = device.part(classes({kRows}, 5, step).chunk(kMicroBatches)[i]);
      const Tensor loss = nn::functional::cross_entropy(replica.forward(x), y) / kMicroBatches;
      loss.backward();
      device.note_mean("loss", loss);
      total += loss.item<double>();
    }
    if (device.mesh().data == 1) device.note("total", total);
    device.note_gradients("model", *model);
    device.note("norm", torch::nn::utils::clip_grad_norm_(model->parameters(), 0.2));
    optimizer.step();
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(gradient_accumulation);

/// Gradients that are replaced by an expression, and then added to.
void assigned_gradients(Device& device) {
  auto model = Device::make(7, [] { return SmallNet(); });
  const auto x_of = [&](int step) { return numbers({kRows, 7}, step); };
  device.initialize(model, [&] { model->forward(x_of(0)); });
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 2; ++i) {
      nn::functional::cross_entropy(model->forward(x_of(step + i)), classes({kRows}, 5, step))
          .backward();
      for (auto& p : model->parameters()) p.mutable_grad() = p.grad() * 0.5;
    }
    device.note_gradients("model", *model);
    optimizer.step();
    optimizer.zero_grad(/*set_to_none=*/step == 1);
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(assigned_gradients);

void schedule(Device& device) {
  auto model = Device::make(3, [] { return ConvNet(); });
  const auto x_of = [&](int step) { return device.part(numbers({4, 49}, step)); };
  device.initialize(model, [&] { model->forward(x_of(0)); });
  Replica replica(device, model);
  torch::optim::SGD optimizer(
      model->parameters(),
      torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(5e-4).nesterov(true));
  torch::optim::StepLR scheduler(optimizer, 2, 0.1);
  for (int epoch = 0; epoch < 4; ++epoch) {
    model->train();
    optimizer.zero_grad();
    const Tensor loss = nn::functional::cross_entropy(replica.forward(x_of(epoch)),
                                                      device.part(classes({4}, 5, epoch)));
    loss.backward();
    device.note_mean("loss", loss);
    optimizer.step();
    scheduler.step();
    device.note("lr", optimizer.param_groups()[0].options().get_lr());
    model->eval();
    const torch::NoGradGuard no_grad;
    const Tensor predicted = model->forward(x_of(20)).argmax(1);
    device.note_mean("correct",
                     predicted.eq(device.part(classes({4}, 5, 3))).to(torch::kDouble).mean());
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(schedule);

/// Backbone and head are trained by different optimizers; the backbone thaws later.
void two_optimizers(Device& device) {
  auto model = Device::make(4, [] { return SmallNet(); });
  const auto x_of = [&](int step) { return device.part(numbers({kRows, 7}, step)); };
  device.initialize(model, [&] { model->forward(x_of(0)); });
  torch::optim::AdamW of_backbone(model->backbone->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::Adagrad of_head(model->head->parameters(), torch::optim::AdagradOptions(5e-2));
  for (auto& p : model->backbone->parameters()) p.requires_grad_(false);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {
      for (auto& p : model->backbone->parameters()) p.requires_grad_(true);
    }
    of_backbone.zero_grad();
    of_head.zero_grad();
    const Tensor loss = nn::functional::cross_entropy(model->forward(x_of(step)),
                                                      device.part(classes({kRows}, 5, step)));
    loss.backward();
    if (device.averages_by_hand()) {
      for (auto& p : model->parameters()) {
        if (!p.grad().defined()) continue;
        const torch::NoGradGuard no_grad;
        Tensor part = oslo::local_tensor(p.grad());
        part.copy_(device.mpu().data_group()->all_reduce(part.clone()) / device.mesh().data);
      }
    }
    device.note_mean("loss", loss);
    device.note_gradients("model", *model);
    of_backbone.step();
    of_head.step();
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(two_optimizers);

}  // namespace
}  // namespace programs
