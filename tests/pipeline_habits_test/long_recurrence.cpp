// A recurrent network of two cells that runs over a long sequence in its own loop: each step of it
// crosses from stage to stage.
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::Tensors;
using torch::Tensor;

constexpr int64_t kSteps = 1100, kFeatures = 3, kUnits = 5, kOutputs = 2;

struct LongGruImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    Tensor low = torch::zeros({x.size(0), kUnits}, x.options()), high = low, sum = low;
    for (int64_t time = 0; time < x.size(1); ++time) {
      low = lower(x.select(1, time), low);
      high = upper(low, high);
      sum = sum + high;
    }
    return head(sum / static_cast<double>(x.size(1)));
  }
  torch::nn::GRUCell lower{register_module("lower", torch::nn::GRUCell(kFeatures, kUnits))};
  torch::nn::GRUCell upper{register_module("upper", torch::nn::GRUCell(kUnits, kUnits))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kUnits, kOutputs))};
};
TORCH_MODULE(LongGru);

TEST(PipelineLongRecurrence, AGruOf1100StepsOverTwoStages) {
  for (const char* kind : {"1f1b", "zero_bubble"}) {
    SCOPED_TRACE(kind);
    pipeline_parity::Trial trial{{1, 1, 2}, kind, 2};
    trial.config = c10::str(R"({"parallel": {"data": 1, "pipeline": {"size": 2, "schedule": ")",
                            kind, R"("}, "tensor": {"size": 1, "mode": "1d"}}, )",
                            R"("stages": {"lower": 0, "upper": 1, "head": 1}})");
    EXPECT_TRUE(expect_parity(
        trial, [] { return LongGru(); },
        [](int) {
          const auto numbers = torch::TensorOptions(torch::kDouble);
          return Tensors{torch::randn({6, kSteps, kFeatures}, numbers),
                         torch::randn({6, kOutputs}, numbers)};
        },
        [](auto& net, const Tensors& micro) {
          return torch::mse_loss(net->forward(micro[0]), micro[1]);
        }));
  }
}

}  // namespace
}  // namespace oslo::test
