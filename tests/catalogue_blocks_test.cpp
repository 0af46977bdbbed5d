// The catalogue's models with convolutions beside their attention, in parallel against one device.
#include "tests/models/conformer.h"
#include "tests/models/diffusion.h"
#include "tests/models/vit.h"
#include "tests/support/catalogue.h"
#include "tests/support/mode_catalogue.h"
#include "tests/support/pipeline_catalogue.h"
#include "tests/support/recomputation_catalogue.h"
#include "tests/support/sequence_catalogue.h"
#include "tests/support/zero_catalogue.h"

namespace catalogue {
namespace {

Entry vit() {
  return entry<models::VisionTransformer>(
      "vit", [] { return models::VisionTransformer(); },
      [](int) {
        return Batch{{torch::randn({4, 3, 12, 12})}, torch::randint(7, {4})};
      },
      one_to_one<models::VisionTransformer>, classification);
}

Entry conformer() {
  const auto batch = [](int) {
    return Batch{{torch::randn({4, 33, 20}), torch::tensor({33, 25, 33, 29}, torch::kLong)},
                 torch::randint(1, 11, {4, 3})};
  };
  Entry made = entry<models::Conformer>(
      "conformer", [] { return models::Conformer(models::ConformerOptions()); }, batch,
      two_to_one<models::Conformer>,
      [](const Tensors& outputs, const Batch& batch) {
        const auto frames = (batch.inputs[1] + 3).floor_divide(4);
        const auto lengths =
            torch::full({batch.target.size(0)}, batch.target.size(1), torch::kLong);
        return torch::nn::functional::ctc_loss(outputs[0].transpose(0, 1), batch.target, frames,
                                               lengths);
      });
  made.batch_coupled = true;  // batch norm
  return made;
}

Entry diffusion() {
  const auto batch = [](int) {
    return Batch{{torch::randn({4, 3, 8, 8}), torch::randint(1000, {4})},
                 torch::randn({4, 3, 8, 8})};
  };
  return entry<models::DiffusionBlock>(
      "diffusion", [] { return models::DiffusionBlock(); }, batch,
      two_to_one<models::DiffusionBlock>,
      [](const Tensors& outputs, const Batch& batch) {
        return torch::mse_loss(outputs[0], batch.target);
      });
}

INSTANTIATE_TEST_SUITE_P(Blocks, Catalogue,
                         testing::Combine(testing::Values(vit, conformer, diffusion),
                                          testing::ValuesIn(kMeshes)),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Blocks, OnStages,
                         testing::ValuesIn(on_stages({vit, conformer, diffusion})),
                         stages_case_name);

INSTANTIATE_TEST_SUITE_P(BlocksInThreeDimensions, OnStages,
                         testing::ValuesIn(in_three_dimensions({vit})), stages_case_name);

INSTANTIATE_TEST_SUITE_P(Blocks, Recomputed,
                         testing::ValuesIn(recomputed({vit, conformer, diffusion}, 16)),
                         recomputed_case_name);

INSTANTIATE_TEST_SUITE_P(Blocks, AtAStage,
                         testing::ValuesIn(at_stages(
                             {{vit}, {conformer}, {diffusion, {.unread = {"time_embed.0"}}}}, 9)),
                         zero_case_name);

INSTANTIATE_TEST_SUITE_P(Blocks, CutAlongSequence,
                         testing::ValuesIn(along_sequence({vit, conformer, diffusion}, 0)),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Blocks, InAMode,
                         testing::ValuesIn(in_modes({vit, conformer, diffusion}, 0)), case_name);

}  // namespace
}  // namespace catalogue
