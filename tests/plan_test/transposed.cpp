// Transposed convolutions, whose weights have the inputs first, are cut by the plan.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include "tests/support/parity.h"
#include "tests/support/seeded.h"

namespace oslo {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

/// A DCGAN's generator in small: what one gives in channels the next one adds up.
struct GeneratorImpl : nn::Module {
  Tensor forward(const Tensor& noise) {
    Tensor x = torch::relu(norm1(conv1(noise)));
    x = torch::relu(conv2(x));
    return torch::tanh(conv3(x));
  }
  static nn::ConvTranspose2d conv(int64_t in, int64_t out, int64_t stride, bool bias) {
    return nn::ConvTranspose2d(nn::ConvTranspose2dOptions(in, out, 3)
                                   .stride(stride)
                                   .padding(1)
                                   .output_padding(stride - 1)
                                   .bias(bias));
  }
  nn::ConvTranspose2d conv1{register_module("conv1", conv(9, 14, 1, false))};
  nn::BatchNorm2d norm1{register_module("norm1", nn::BatchNorm2d(14))};
  nn::ConvTranspose2d conv2{register_module("conv2", conv(14, 10, 2, true))};
  nn::ConvTranspose2d conv3{register_module("conv3", conv(10, 2, 2, true))};
};
TORCH_MODULE(Generator);

/// One of each number of dimensions, and one in groups, which stays whole.
struct EachImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    Tensor y = torch::relu(in_one(x));
    y = torch::relu(grouped(y)).unsqueeze(2).unsqueeze(3);
    return in_three(y);
  }
  nn::ConvTranspose1d in_one{register_module("in_one", nn::ConvTranspose1d(5, 6, 3))};
  nn::ConvTranspose1d grouped{register_module(
      "grouped", nn::ConvTranspose1d(nn::ConvTranspose1dOptions(6, 10, 2).groups(2)))};
  nn::ConvTranspose3d in_three{register_module("in_three", nn::ConvTranspose3d(10, 3, 2))};
};
TORCH_MODULE(Each);

template <typename Model>
void expect_trained(int ranks, const std::string& plan, const std::vector<int64_t>& sizes,
                    const std::function<void(Model&, ParallelModel&)>& look) {
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Model reference = test::make_seeded(3, [] { return Model(); });
    Model model = test::make_seeded(3, [] { return Model(); });
    reference->to(torch::kDouble);
    model->to(torch::kDouble);
    const Tensor x = test::make_seeded(4, [&] { return torch::randn(sizes, torch::kDouble); });
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(x); };
    ParallelModel parallel =
        initialize(model,
                   Config::parse(c10::str(R"({"model_parallelism": {"tensor_parallel_size": )",
                                          ranks, R"(}, "plan": )", plan, "}")),
                   how);
    torch::optim::SGD optimizer(model->parameters(), 0.1), plain(reference->parameters(), 0.1);
    for (int step = 0; step < 2; ++step) {
      const auto loss = [&](Model& of) { return (of->forward(x) - 0.5).square().mean(); };
      optimizer.zero_grad();
      plain.zero_grad();
      const Tensor own = loss(model), expected = loss(reference);
      parity::expect_close(full_tensor(own).detach(), expected.detach(), "loss");
      own.backward();
      expected.backward();
      if (step == 0) look(model, parallel);
      optimizer.step();
      plain.step();
    }
    const auto parameters = model->named_parameters();
    for (const auto& item : reference->named_parameters()) {
      parity::expect_close(full_tensor(parameters[item.key()]).detach(), item.value().detach(),
                           item.key());
    }
  });
}

TEST(TransposedConvolutions, AreCutByTheExample) {
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    expect_trained<Generator>(
        ranks, "{}", {4, 9, 3, 3}, [&](Generator& model, ParallelModel& parallel) {
          for (const auto& layer : {model->conv1, model->conv2, model->conv3}) {
            const Tensor& weight = layer->weight;
            EXPECT_LT(local_tensor(weight).numel(), full_tensor(weight).numel()) << layer->name();
          }
          EXPECT_EQ(parallel.plan().gathers.size(), 0u);
        });
  }
}

TEST(TransposedConvolutions, AreCutAsAPlanSays) {
  expect_trained<Each>(
      2, R"({"in_one": "column", "in_three": "row"})", {4, 5, 7}, [](Each& model, ParallelModel&) {
        EXPECT_EQ(local_tensor(model->in_one->weight).sizes(), at::IntArrayRef({5, 3, 3}));
        EXPECT_EQ(local_tensor(model->in_one->bias).sizes(), at::IntArrayRef({3}));
        EXPECT_EQ(local_tensor(model->in_three->weight).sizes(), at::IntArrayRef({5, 3, 2, 2, 2}));
        EXPECT_EQ(local_tensor(model->in_three->bias).sizes(), at::IntArrayRef({3}));
        EXPECT_EQ(local_tensor(model->grouped->weight).sizes(), at::IntArrayRef({6, 5, 2}));
      });
}

}  // namespace
}  // namespace oslo
