// The catalogue's vision and representation models, in parallel against one device.
#include "tests/models/convnext.h"
#include "tests/models/mlp_mixer.h"
#include "tests/models/siamese.h"
#include "tests/models/swin.h"
#include "tests/models/unet.h"
#include "tests/models/vae.h"
#include "tests/support/budget_catalogue.h"
#include "tests/support/catalogue.h"
#include "tests/support/mode_catalogue.h"
#include "tests/support/pipeline_catalogue.h"
#include "tests/support/recomputation_catalogue.h"
#include "tests/support/sequence_catalogue.h"
#include "tests/support/zero_catalogue.h"

namespace catalogue {
namespace {

namespace F = torch::nn::functional;

/// Four square images and a class for each.
std::function<Batch(int)> images(int64_t side, int64_t classes) {
  return [=](int) {
    return Batch{{torch::randn({4, 3, side, side})}, torch::randint(classes, {4})};
  };
}

Entry swin() {
  using Model = models::swin::Swin;
  return entry<Model>(
      "swin", [] { return Model(); }, images(16, 7), one_to_one<Model>, classification);
}

Entry mlp_mixer() {
  using Model = models::mixer::MlpMixer;
  return entry<Model>(
      "mlp_mixer", [] { return Model(); }, images(12, 5), one_to_one<Model>, classification);
}

Entry convnext() {
  using Model = models::convnext::ConvNeXt;
  return entry<Model>(
      "convnext", [] { return Model(); }, images(16, 7), one_to_one<Model>, classification);
}

Entry unet() {
  using Model = models::unet::UNet;
  const auto batch = [](int) {
    return Batch{{torch::randn({4, 2, 8, 8}), torch::randn({4, 6})}, torch::randn({4, 3, 8, 8})};
  };
  return entry<Model>(
      "unet", [] { return Model(); }, batch, two_to_one<Model>,
      [](const Tensors& outputs, const Batch& batch) {
        return F::mse_loss(outputs[0], batch.target);
      });
}

Entry vae() {
  using Model = models::vae::Vae;
  const auto batch = [](int) {
    const auto image = torch::rand({4, 35});
    return Batch{{image, torch::randn({4, 5})}, image};
  };
  return entry<Model>(
      "vae", [] { return Model(); }, batch,
      [](auto& model, const Tensors& inputs) {
        const auto out = model.forward(inputs[0], inputs[1]);
        return Tensors{out.reconstruction, out.mu, out.logvar};
      },
      [](const Tensors& outputs, const Batch& batch) {
        return models::vae::loss_function({outputs[0], outputs[1], outputs[2]}, batch.target);
      });
}

Entry siamese() {
  using Model = models::siamese::Siamese;
  const auto batch = [](int) {
    return Batch{{torch::randn({4, 9}), torch::randn({4, 9}), torch::randn({4, 9})},
                 torch::randint(7, {4})};
  };
  return entry<Model>(
      "siamese", [] { return Model(); }, batch,
      [](auto& model, const Tensors& inputs) {
        const auto out = model.forward(inputs[0], inputs[1], inputs[2]);
        return Tensors{out.anchor, out.positive, out.negative, out.distances};
      },
      [](const Tensors& outputs, const Batch& batch) {
        return models::siamese::loss_function({outputs[0], outputs[1], outputs[2], outputs[3]},
                                              batch.target);
      });
}

INSTANTIATE_TEST_SUITE_P(Vision, Catalogue,
                         testing::Combine(testing::Values(swin, mlp_mixer, convnext, unet, vae,
                                                          siamese),
                                          testing::ValuesIn(kMeshes)),
                         case_name);

INSTANTIATE_TEST_SUITE_P(
    Vision, OnStages, testing::ValuesIn(on_stages({swin, mlp_mixer, convnext, unet, vae, siamese})),
    stages_case_name);

INSTANTIATE_TEST_SUITE_P(
    Vision, Recomputed,
    testing::ValuesIn(recomputed({swin, mlp_mixer, convnext, unet, vae, siamese}, 10)),
    recomputed_case_name);

INSTANTIATE_TEST_SUITE_P(Vision, WithinBudget,
                         testing::Values(swin, mlp_mixer, convnext, unet, vae, siamese),
                         budget_case_name);

INSTANTIATE_TEST_SUITE_P(
    Vision, AtAStage,
    testing::ValuesIn(at_stages(
        {{unet}, {swin}, {mlp_mixer}, {convnext}, {vae, {.unread = {"fc1"}}}, {siamese}}, 12)),
    zero_case_name);

// Not among them: unet, whose rows of an image can be cut or not, by a few bytes that are kept.
INSTANTIATE_TEST_SUITE_P(Vision, CutAlongSequence,
                         testing::ValuesIn(along_sequence({swin, mlp_mixer, convnext, vae, siamese},
                                                          27)),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Vision, InAMode,
                         testing::ValuesIn(in_modes({swin, mlp_mixer, convnext, unet, vae, siamese},
                                                    26)),
                         case_name);

}  // namespace
}  // namespace catalogue
