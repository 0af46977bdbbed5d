#include "tests/kernel_fusion_test/counted.h"

#include <c10/util/StringUtil.h>

namespace oslo::test {
namespace {

/// Those by LibTorch's operators, counted.
class CountedKernels final : public LinearKernels {
 public:
  Activated product_and_gelu(const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& bias) override {
    ++kernel_calls().gelu;
    Activated both = LinearKernels::product_and_gelu(x, weight, bias);
    if (kernel_calls().rounding != 0) both.activation.mul_(1 + kernel_calls().rounding);
    return both;
  }
  at::Tensor product_and_gelu_backward(const at::Tensor& gradient, const at::Tensor& weight,
                                       const at::Tensor& sum) override {
    ++kernel_calls().gelu_backward;
    return LinearKernels::product_and_gelu_backward(gradient, weight, sum);
  }
  at::Tensor weight_gradient(const at::Tensor& into, Into how, const at::Tensor& gradient,
                             const at::Tensor& x, bool bias) override {
    ++(how == Into::adds ? kernel_calls().adds : kernel_calls().overwrites);
    return LinearKernels::weight_gradient(into, how, gradient, x, bias);
  }
};

/// In the place of those of liboslo_cpp_cuda.
[[maybe_unused]] const bool kRegistered = [] {
  set_cuda_linear_kernels(
      []() -> std::unique_ptr<LinearKernels> { return std::make_unique<CountedKernels>(); });
  return true;
}();

constexpr int64_t kWidth = 6, kHidden = 10;

}  // namespace

KernelCalls& kernel_calls() {
  static KernelCalls calls;
  return calls;
}

torch::Tensor gelu_tanh(const torch::Tensor& x) {
  return torch::gelu(x, "tanh");
}

torch::Tensor linear(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

torch::Tensor on_rows(const torch::nn::Linear& layer, const torch::Tensor& x) {
  auto sizes = x.sizes().vec();
  sizes.back() = layer->options.out_features();
  return torch::addmm(layer->bias, x.view({-1, x.size(-1)}), layer->weight.t()).view(sizes);
}

MlpImpl::MlpImpl() {
  const auto layer = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, torch::nn::Linear(in, out));
  };
  up_one = layer("up_one", kWidth, kHidden), down_one = layer("down_one", kHidden, kWidth);
  up_two = layer("up_two", kWidth, kHidden), down_two = layer("down_two", kHidden, kWidth);
  up_three = layer("up_three", kWidth, kHidden), down_three = layer("down_three", kHidden, kWidth);
  up_four = layer("up_four", kWidth, kHidden), down_four = layer("down_four", kHidden, kWidth);
}

torch::Tensor MlpImpl::forward(torch::Tensor x) {
  x = x + linear(down_one, gelu_tanh(linear(up_one, x)));
  x = x + down_two(gelu_tanh(up_two(x.flatten(0, 1)))).view_as(x);
  x = x + down_three(torch::gelu(up_three(x)));
  return x + on_rows(down_four, gelu_tanh(on_rows(up_four, x)));
}

std::string fused_config(int tensor, bool fusion) {
  return c10::str(R"({"kernel_fusion": )", fusion ? "true" : "false",
                  R"(, "model_parallelism": {"tensor_parallel_size": )", tensor,
                  R"(}, "plan": {"up_one": "column", "up_two": "column", "up_three": "column", )",
                  R"("up_four": "column", "down_one": "row", "down_two": "row", )",
                  R"("down_three": "row", "down_four": "row"}})");
}

}  // namespace oslo::test
