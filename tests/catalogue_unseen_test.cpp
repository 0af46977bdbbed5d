// Models that were written after the rules, by somebody who had not read them, in parallel against
// one device.
#include "tests/models/clip.h"
#include "tests/models/deepseek.h"
#include "tests/models/detr.h"
#include "tests/models/mamba.h"
#include "tests/models/pointnet.h"
#include "tests/models/rwkv.h"
#include "tests/models/vocoder.h"
#include "tests/support/catalogue.h"
#include "tests/support/mode_catalogue.h"
#include "tests/support/pipeline_catalogue.h"
#include "tests/support/recomputation_catalogue.h"
#include "tests/support/sequence_catalogue.h"

namespace catalogue {
namespace {

namespace F = torch::nn::functional;

template <typename Model>
Entry language_model(const char* name, int64_t vocabulary) {
  const auto batch = [vocabulary](int) {
    return Batch{{torch::randint(vocabulary, {4, 7})}, torch::randint(vocabulary, {4, 7})};
  };
  return entry<Model>(
      name, [] { return Model(); }, batch, one_to_one<Model>, next_token);
}

Entry mamba() {
  return language_model<MambaLM>("mamba", MambaConfig().vocab_size);
}

Entry deepseek_mla() {
  return language_model<deepseek::Transformer>("deepseek_mla", deepseek::ModelArgs().vocab_size);
}

Entry rwkv() {
  return language_model<torch::nn::ModuleHolder<models::rwkv::Rwkv>>(
      "rwkv", models::rwkv::Args().vocab_size);
}

Entry detr() {
  using Model = models::detr::Detr;
  const auto batch = [](int) {
    const auto classes = torch::randint(5, {4, 3, 1}).to(torch::kFloat);
    return Batch{{torch::randn({4, 3, 21, 27})},
                 torch::cat({classes, torch::rand({4, 3, 4}) * 0.6 + 0.2}, -1)};
  };
  Entry made = entry<Model>(
      "detr", [] { return Model(); }, batch,
      [](auto& model, const Tensors& inputs) {
        const auto [classes, boxes] = model.forward(inputs[0]);
        return Tensors{classes, boxes};
      },
      [](const Tensors& outputs, const Batch& batch) {
        return models::detr::set_loss(outputs[0], outputs[1], batch.target);
      });
  made.decides = true;
  return made;
}

Entry pointnet() {
  using Model = models::pointnet::PointNetSeg;
  const auto batch = [](int) {
    return Batch{{torch::randn({4, 3, 10})}, torch::randint(5, {4, 10})};
  };
  Entry made = entry<Model>(
      "pointnet", [] { return Model(); }, batch,
      [](auto& model, const Tensors& inputs) {
        const auto [scores, transform] = model.forward(inputs[0]);
        return Tensors{scores, transform};
      },
      [](const Tensors& outputs, const Batch& batch) {
        return F::nll_loss(outputs[0].reshape({-1, outputs[0].size(-1)}), batch.target.view(-1)) +
               1e-3 * models::pointnet::feature_transform_regularizer(outputs[1]);
      });
  made.batch_coupled = true;
  made.sgd = true;
  made.decides = true;
  return made;
}

Entry clip() {
  using Model = models::clip::Clip;
  const auto batch = [](int) {
    return Batch{{torch::randn({4, 3, 9, 9}), torch::randint(43, {4, 6})}, torch::arange(4)};
  };
  Entry made = entry<Model>(
      "clip", [] { return Model(); }, batch,
      [](auto& model, const Tensors& inputs) {
        const auto [per_image, per_text] = model.forward(inputs[0], inputs[1]);
        return Tensors{per_image, per_text};
      },
      [](const Tensors& outputs, const Batch&) {
        return models::clip::contrastive_loss(outputs[0], outputs[1]);
      });
  made.batch_coupled = true;  // every image is compared with every text
  return made;
}

Entry vocoder() {
  using Model = models::vocoder::Generator;
  const auto batch = [](int) {
    return Batch{{torch::randn({4, 11, 6}), torch::randint(4, {4})}, torch::randn({4, 36}) * 0.3};
  };
  Entry made = entry<Model>(
      "vocoder", [] { return Model(); }, batch, two_to_one<Model>,
      [](const Tensors& outputs, const Batch& batch) {
        return models::vocoder::spectral_loss(outputs[0], batch.target);
      });
  return made;
}

INSTANTIATE_TEST_SUITE_P(Unseen, Catalogue,
                         testing::Combine(testing::Values(mamba, rwkv, detr, pointnet, clip,
                                                          deepseek_mla, vocoder),
                                          testing::ValuesIn(kMeshes)),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Unseen, OnStages,
                         testing::ValuesIn(on_stages({pointnet, mamba, rwkv, detr, clip,
                                                      deepseek_mla, vocoder})),
                         stages_case_name);

INSTANTIATE_TEST_SUITE_P(
    Unseen, Recomputed,
    testing::ValuesIn(recomputed({mamba, rwkv, detr, pointnet, clip, deepseek_mla, vocoder}, 29)),
    recomputed_case_name);

// Not among them: pointnet, whose points can be cut or not, by a few bytes that are kept.
INSTANTIATE_TEST_SUITE_P(
    Unseen, CutAlongSequence,
    testing::ValuesIn(along_sequence({mamba, detr, clip, deepseek_mla, vocoder}, 20)), case_name);
INSTANTIATE_TEST_SUITE_P(Unseen, WithoutSequence, testing::Values(rwkv), entry_name);

INSTANTIATE_TEST_SUITE_P(Unseen, InAMode,
                         testing::ValuesIn(in_modes({mamba, detr, clip, deepseek_mla, vocoder},
                                                    20)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(UnseenGrids, InAMode, testing::ValuesIn(in_grids({rwkv})), case_name);
INSTANTIATE_TEST_SUITE_P(Unseen, WithoutContext, testing::Values(rwkv), entry_name);

}  // namespace
}  // namespace catalogue
