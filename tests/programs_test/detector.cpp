// Faster R-CNN (Ren et al. 2015) with kernels of its own over data_ptr: proposals of a region
// network, non-maximum suppression, RoIAlign, and two heads. What a kernel reads is made whole by
// oslo::full_tensor, which gives a plain tensor back as it is, and is differentiable. While the
// example is run on shapes nothing is here to be read, and something of the right shape stands in.
#include "tests/programs_test/detection_kernels.h"
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;
using oslo::full_tensor;

struct DetectorImpl : nn::Module {
  static constexpr int64_t kSize = 12, kGrid = 6, kKept = 3, kBins = 3, kClasses = 5;

  /// A box of 5 pixels around each place of the grid, [kGrid * kGrid, 4].
  static Tensor anchors() {
    const Tensor at = torch::arange(kGrid, torch::kDouble) + 0.5;
    const auto grid = torch::meshgrid({at, at}, "ij");
    const Tensor y = grid[0].flatten(), x = grid[1].flatten();
    return torch::stack({x - 1.3, y - 1.3, x + 1.3, y + 1.3}, 1);
  }

  /// The best boxes of each image, [images * kKept, 5]; no gradient goes through the choice.
  Tensor proposals(const Tensor& objectness, const Tensor& deltas) {
    const torch::NoGradGuard no_grad;
    const Tensor scores = full_tensor(torch::sigmoid(objectness).flatten(1));
    const Tensor moved = deltas.view({deltas.size(0), 4, -1}).transpose(1, 2);
    const Tensor boxes = full_tensor(anchors() + 0.5 * torch::tanh(moved));
    std::vector<Tensor> all;
    for (int64_t image = 0; image < boxes.size(0); ++image) {
      const Tensor kept = oslo::is_here(boxes) ? detection::nms(boxes[image], scores[image], 0.3)
                                               : torch::arange(boxes.size(1));
      const Tensor best = boxes[image].index_select(0, kept.slice(0, 0, kKept));
      all.push_back(torch::cat({torch::full({best.size(0), 1}, double(image)), best}, 1));
    }
    return torch::cat(all);
  }

  static Tensor pool(const Tensor& features, const Tensor& rois) {
    if (oslo::is_here(features)) return detection::RoIAlign::apply(features, rois, kBins);
    return torch::adaptive_avg_pool2d(features, {kBins, kBins}).repeat_interleave(kKept, 0);
  }

  /// Scores of all anchors, and classes and boxes of the proposals.
  std::vector<Tensor> forward(const Tensor& images) {
    const Tensor features =
        torch::relu(norm(conv2(torch::relu(conv1(images)))));  // [images, 7, kGrid, kGrid]
    const Tensor h = torch::relu(rpn(features));
    const Tensor objectness = rpn_score(h), deltas = rpn_box(h);
    const Tensor rois = proposals(objectness, deltas);
    const Tensor pooled = pool(full_tensor(features), rois);
    const Tensor box_features = torch::relu(fc2(torch::relu(fc1(pooled.flatten(1)))));
    return {objectness.flatten(1), deltas, classifier(box_features), regressor(box_features)};
  }

  nn::Conv2d conv1{register_module("conv1", nn::Conv2d(nn::Conv2dOptions(3, 5, 3).padding(1)))};
  nn::Conv2d conv2{
      register_module("conv2", nn::Conv2d(nn::Conv2dOptions(5, 7, 3).stride(2).padding(1)))};
  nn::GroupNorm norm{register_module("norm", nn::GroupNorm(1, 7))};
  nn::Conv2d rpn{register_module("rpn", nn::Conv2d(nn::Conv2dOptions(7, 11, 3).padding(1)))};
  nn::Conv2d rpn_score{register_module("rpn_score", nn::Conv2d(nn::Conv2dOptions(11, 1, 1)))};
  nn::Conv2d rpn_box{register_module("rpn_box", nn::Conv2d(nn::Conv2dOptions(11, 4, 1)))};
  nn::Linear fc1{register_module("fc1", nn::Linear(7 * kBins * kBins, 17))};
  nn::Linear fc2{register_module("fc2", nn::Linear(17, 13))};
  nn::Linear classifier{register_module("classifier", nn::Linear(13, kClasses))};
  nn::Linear regressor{register_module("regressor", nn::Linear(13, 4))};
};
TORCH_MODULE(Detector);

void faster_rcnn(Device& device) {
  using Impl = Detector::Impl;
  constexpr int64_t kImages = 4;
  auto model = Device::make(4, [] { return Detector(); });
  const auto images = [&](int step) {
    return device.part(numbers({kImages, 3, Impl::kSize, Impl::kSize}, 5.0 * step));
  };
  const auto parallel = device.initialize(model, [&] { model->forward(images(0)); });
  if (parallel) {
    EXPECT_EQ(parallel->plan().to_string().find("could not be run on shapes"), std::string::npos);
  }
  Replica replica(device, model);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    const auto out = replica.forward(images(step));
    ASSERT_EQ(out[2].size(0), images(step).size(0) * Impl::kKept);
    const Tensor there =
        device.part(classes({kImages, Impl::kGrid * Impl::kGrid}, 2, step)).to(torch::kDouble);
    const Tensor kinds = device.part(classes({kImages, Impl::kKept}, Impl::kClasses, step));
    const Tensor boxes = device.part(numbers({kImages, Impl::kKept, 4}, 50.0 + step));
    const Tensor loss = torch::binary_cross_entropy_with_logits(out[0], there) +
                        0.1 * out[1].pow(2).mean() +
                        nn::functional::cross_entropy(out[2], kinds.flatten()) +
                        torch::smooth_l1_loss(out[3], boxes.flatten(0, 1));
    optimizer.zero_grad();
    loss.backward();
    device.note_mean("loss", loss);
    device.note_rows("objectness", out[0]);
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(faster_rcnn);

}  // namespace
}  // namespace programs
