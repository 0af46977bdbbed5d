// Calls of one kind and nothing else, for a tool that counts instructions: the quiet measure where
// the clock is not. No communication: rank 0 of a fake group of two.
//
//   valgrind --tool=none bench_calls WHAT N [--device cpu]
//
// WHAT of N calls; the difference of two N is the cost.
//
// WHAT: plain:add, cut:add, plain:step and so on; `step` is forward and backward of a GPT, and
// part:step that of a plain one of the sizes that a rank has of the cut one.
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "benchmarks/device.h"
#include "benchmarks/ranks/model.h"
#include "benchmarks/ranks/peer_plan.h"
#include "parallelizers/placement/carrier/mark.h"

namespace {

using Action = std::function<void()>;

/// An activation of 8 x 8, cut in two on its last dimension, or its part alone.
struct Activation {
  Activation(bool cut, bool grad, const torch::Device& device) {
    const auto part = torch::randn({8, 4}, device).requires_grad_(grad);
    value =
        cut ? oslo::from_local(part, mpu.tensor_mesh(), {oslo::Placement::shard(1)}, {8, 8}) : part;
    value = value.clone();  // no leaf
  }
  oslo::MPU mpu{oslo::World::fake(0, 2), oslo::MpuOptions().tensor_parallel_size(2)};
  torch::Tensor value;
};

template <typename Operator>
Action on_activation(bool cut, bool grad, const torch::Device& device, const Operator& op) {
  const auto activation = std::make_shared<Activation>(cut, grad, device);
  return [activation, op] { op(activation->value); };
}

/// A linear layer of 64 -> 64, cut by column, on a plain input.
Action linear(bool cut, const torch::Device& device) {
  struct Net : torch::nn::Module {
    torch::nn::Linear fc{register_module("fc", torch::nn::Linear(64, 64))};
  };
  const auto net = std::make_shared<Net>();
  net->to(device);
  const auto mpu = std::make_shared<oslo::MPU>(oslo::World::fake(0, 2),
                                               oslo::MpuOptions().tensor_parallel_size(2));
  std::shared_ptr<torch::nn::Linear> fc = std::make_shared<torch::nn::Linear>(net->fc);
  if (cut) {
    oslo::mark_parameter(
        (*fc)->weight,
        std::make_shared<oslo::Layout>(oslo::make_layout(
            mpu->tensor_mesh(), {oslo::Placement::shard(0)}, (*fc)->weight.sizes())),
        "fc.weight");
    oslo::mark_parameter((*fc)->bias,
                         std::make_shared<oslo::Layout>(oslo::make_layout(
                             mpu->tensor_mesh(), {oslo::Placement::shard(0)}, (*fc)->bias.sizes())),
                         "fc.bias");
  }
  return [fc, mpu, x = torch::randn({2, 3, 64}, device)] { (*fc)->forward(x); };
}

/// Forward and backward of a GPT of four layers, whole, cut, or of a part's sizes.
Action step(bool cut, int64_t parts, int64_t hidden, const torch::Device& device) {
  auto model = std::make_shared<bench::Gpt>(512, 64, hidden, 4, 4, /*tied=*/true, parts);
  const int64_t words = 512 / parts;
  (*model)->to(device);
  const auto place = torch::arange(2 * 64, device) * 7;
  const auto tokens = place.remainder(words).view({2, 64}), targets = (place + 3).remainder(words);
  std::shared_ptr<oslo::ParallelModel> parallel;
  if (cut) {
    oslo::InitializeOptions how;
    how.world = oslo::World::fake(0, 2);
    parallel = std::make_shared<oslo::ParallelModel>(
        oslo::initialize(*model, bench::cut_like_the_peer(2, /*words=*/true), how));
  }
  return [=] {
    (*model)->zero_grad();
    const auto logits = (*model)->forward(tokens);
    torch::nn::functional::cross_entropy(logits.view({-1, words}), targets).backward();
  };
}

Action action(const std::string& what, const torch::Device& device) {
  const bool cut = what.starts_with("cut:");
  const int64_t parts = what.starts_with("part:") ? 2 : 1;
  const std::string name = what.substr(what.find(':') + 1);
  const auto add = [](const torch::Tensor& x) { (void)torch::add(x, x); };
  const auto gelu = [](const torch::Tensor& x) { (void)torch::gelu(x); };
  const auto softplus = [](const torch::Tensor& x) { (void)torch::softplus(x); };
  const auto view = [](const torch::Tensor& x) { (void)x.transpose(0, 1); };
  if (name == "add") return on_activation(cut, false, device, add);
  if (name == "add_grad") return on_activation(cut, true, device, add);
  if (name == "gelu") return on_activation(cut, false, device, gelu);
  if (name == "gelu_grad") return on_activation(cut, true, device, gelu);
  if (name == "softplus_grad") return on_activation(cut, true, device, softplus);
  if (name == "transpose_grad") return on_activation(cut, true, device, view);
  if (name == "linear") return linear(cut, device);
  if (name == "step") return step(cut, parts, 64, device);
  if (name == "step256") return step(cut, parts, 256, device);
  std::cerr << "no such call: " << what << std::endl;
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  const torch::Device device = bench::device_named(bench::take_device_name(argc, argv));
  if (argc != 3) return 2;
  at::set_num_threads(1);
  const Action call = action(argv[1], device);
  for (int64_t i = std::atoll(argv[2]); i > 0; --i) call();
  bench::finish(device);
}
