// An operator of the program's own, with its own gradient, in a model that is cut over ranks.
//
//   oslo run -n 3 ./own_operator             the operator has a rule: nothing is gathered
//   oslo run -n 3 ./own_operator --no-rule   it is computed whole on every rank
//
// prints what was gathered and moved in one step, then compares the model, gradients included, with
// the same model on one device; exit 1 if they differ.
#include <oslo_cpp/oslo.h>

#include <iostream>
#include <string_view>

#include "device_option.h"

// look(x, step): the mean of each token and the one `step` before it, feature by feature.
// x: [.., tokens, features]; there are zeros outside. A rank may be given no feature at all.
static torch::Tensor look_on_cpu(const torch::Tensor& x, int64_t step) {
  const torch::Tensor in = x.contiguous();
  torch::Tensor out = torch::empty_like(in);
  const int64_t tokens = in.size(-2), features = in.size(-1);
  AT_DISPATCH_FLOATING_TYPES(in.scalar_type(), "look", [&] {
    const auto* from = in.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < in.numel(); ++i) {
      const int64_t before = i / features % tokens - step;
      const bool inside = before >= 0 && before < tokens;
      to[i] = (from[i] + (inside ? from[i - step * features] : scalar_t(0))) / 2;
    }
  });
  return out;
}

// The same by LibTorch's operators, for tensors on a GPU.
static torch::Tensor look_on_gpu(const torch::Tensor& x, int64_t step) {
  return (x + torch::constant_pad_nd(x, {0, 0, step, -step})) / 2;
}

static torch::Tensor look(const torch::Tensor& x, int64_t step) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mylib::look", "")
                             .typed<torch::Tensor(const torch::Tensor&, int64_t)>();
  return op.call(x, step);
}

struct Look : torch::autograd::Function<Look> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               int64_t step) {
    context->saved_data["step"] = step;
    const at::AutoDispatchBelowADInplaceOrView below;
    return look(x, step);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {look(gradients[0], -context->saved_data["step"].toInt()), torch::Tensor()};
  }
};

TORCH_LIBRARY(mylib, library) {
  library.def("look(Tensor x, int step) -> Tensor");
}
TORCH_LIBRARY_IMPL(mylib, CPU, library) {
  library.impl("look", look_on_cpu);
}
TORCH_LIBRARY_IMPL(mylib, CUDA, library) {
  library.impl("look", look_on_gpu);
}
TORCH_LIBRARY_IMPL(mylib, Autograd, library) {
  library.impl("look", [](const torch::Tensor& x, int64_t step) { return Look::apply(x, step); });
}

// The model knows nothing of ranks.
struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return x + down->forward(torch::gelu(look(up->forward(x), 1)));
  }
  torch::nn::Linear up{register_module("up", torch::nn::Linear(10, 37))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(37, 10))};
};
TORCH_MODULE(Net);

static Net seeded_net() {
  torch::manual_seed(0);
  return Net();
}

static bool run(bool with_rule, const std::string& device_name) {
  // Each feature for itself; a token needs its neighbours, so T must not be cut.
  if (with_rule) oslo::register_rule("mylib::look", "..TC -> ..TC", /*whole=*/"T");

  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, device_name);
  Net net = seeded_net();
  Net on_one_device = seeded_net();
  net->to(device);
  on_one_device->to(device);
  const torch::Tensor x = torch::randn({2, 5, 10}).to(device);

  // Said by name: of layers as small as these the planner might leave some whole.
  oslo::Config config = oslo::Config::parse(R"({
    "model_parallelism": {"enable": true},
    "plan": {"up": "column", "down": "row"}
  })");
  config.set(c10::str("model_parallelism.tensor_parallel_size=", world.size()));
  oslo::InitializeOptions how;
  how.world = world;
  how.example_inputs = [&] { net->forward(x); };
  oslo::ParallelModel parallel = oslo::initialize(net, config, how);

  parallel.count([&] { net->forward(x).pow(2).sum().backward(); });
  const std::string plan = parallel.plan().to_string();
  net->zero_grad();
  const oslo::Verification verification = oslo::verify(parallel, on_one_device, x);
  if (world.rank() == 0) std::cout << plan << "\n" << verification.to_string() << std::flush;
  return verification.equal() && parallel.plan().gathers.empty() == with_rule;
}

int main(int argc, char** argv) {
  try {
    const bool with_rule = argc < 2 || std::string_view(argv[1]) != "--no-rule";
    return run(with_rule, device_option(argc, argv)) ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
