// A model in a shared library, as a user of `oslo plan` would have it.
#include <ATen/ATen.h>
#include <oslo_cpp/model_library.h>
#include <torch/nn/modules/linear.h>

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(64, 256))),
        second(register_module("second", torch::nn::Linear(256, 64))) {}

  at::Tensor forward(const at::Tensor& x) { return second(at::gelu(first(x))); }

  torch::nn::Linear first, second;
};

}  // namespace

OSLO_MODEL_LIBRARY([] {
  const auto net = std::make_shared<NetImpl>();
  oslo::InitializeOptions how;
  how.example_inputs = [net] { net->forward(at::zeros({8, 64})); };
  return oslo::LibraryModel{net, how};
})
