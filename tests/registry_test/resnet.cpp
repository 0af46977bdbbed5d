// The document's first example: a ResNet18 as a chain, its first six parts on one stage and the
// rest on the other; whole on every rank, where the document splits it by the pipeline rank.
#include <gmock/gmock.h>

#include "oslo_cpp/registry/pipeline_model.h"
#include "tests/engine_test/cases.h"

namespace oslo::test::engines {
namespace {

namespace nn = torch::nn;

/// Narrow: widths of 4 to 32 in place of 64 to 512.
struct BasicBlockImpl : nn::Module {
  BasicBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(register_module("conv1", conv(in, out, 3, stride))),
        conv2(register_module("conv2", conv(out, out, 3, 1))),
        bn1(register_module("bn1", nn::BatchNorm2d(out))),
        bn2(register_module("bn2", nn::BatchNorm2d(out))) {
    if (stride == 1 && in == out) return;
    downsample = register_module("downsample",
                                 nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out)));
  }
  static nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    return nn::Conv2d(
        nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(y + (downsample ? downsample->forward(x) : x));
  }
  nn::Conv2d conv1, conv2;
  nn::BatchNorm2d bn1, bn2;
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(BasicBlock);

/// A Sequential within a Sequential has a forward without template parameters.
struct LayerImpl : nn::SequentialImpl {
  Tensor forward(const Tensor& x) { return nn::SequentialImpl::forward(x); }
};
TORCH_MODULE(Layer);

nn::Sequential resnet18() {
  return make_seeded(4, [] {
    nn::Sequential net;
    net->push_back(BasicBlockImpl::conv(3, 4, 7, 2));
    net->push_back(nn::BatchNorm2d(4));
    net->push_back(nn::ReLU());
    net->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
    for (const int64_t width : {4, 8, 16, 32}) {
      Layer layer;
      layer->push_back(BasicBlock(std::max<int64_t>(width / 2, 4), width, width == 4 ? 1 : 2));
      layer->push_back(BasicBlock(width, width, 1));
      net->push_back(layer);
    }
    net->push_back(nn::AdaptiveAvgPool2d(1));
    net->push_back(nn::Flatten());
    net->push_back(nn::Linear(32, 10));
    net->to(torch::kDouble);
    return net;
  });
}

TEST(ResNet18, OverTwoStagesTrainsAsOnOneDevice) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    PipelineModel model = build_pipeline_model(resnet18());
    nn::Sequential plain = resnet18();
    const auto criterion = [](const Tensor& output, const Tensor& label) {
      return nn::functional::cross_entropy(output, label);
    };
    torch::optim::SGD optimizer(model->parameters(), 0.1), by_hand(plain->parameters(), 0.1);
    const Tensor pictures = torch::sin(torch::arange(4 * 3 * 37 * 33, torch::kDouble));
    const Batches batches(2, Example(pictures.view({4, 3, 37, 33}), torch::tensor({0, 3, 9, 3})));
    auto [engine, train_loader] = oslo::initialize(
        model, optimizer, criterion, batches,
        Config::parse(R"({"parallel": {"pipeline": 2}, "stages": {"0-5": 0, "6-10": 1}})"),
        in(world));
    // Batch statistics are those of a micro-batch.
    oslo::PipelineSchedule schedule(engine, 1);
    for (auto data_iter = train_loader.begin(); data_iter != train_loader.end();) {
      engine.zero_grad();
      auto [output, label, loss] = schedule.forward_backward_step(engine, data_iter);
      engine.step();
      by_hand.zero_grad();
      const Tensor expected = criterion(plain->forward(batches[0].data), batches[0].target);
      expected.backward();
      by_hand.step();
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-9);
    }
    int64_t here = 0;
    parity::for_each_parameter(
        *model, *plain, [&](const std::string& name, const Tensor& mine, const Tensor& expected) {
          EXPECT_EQ(is_here(mine), (name.front() < '6' && name[1] == '.') == (world.rank() == 0))
              << name;
          if (!is_here(mine)) return;
          ++here;
          parity::expect_close(mine.detach(), expected.detach(), name, parity::kTrained);
        });
    EXPECT_GT(here, 20);
  });
}

}  // namespace
}  // namespace oslo::test::engines
