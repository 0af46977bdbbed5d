// The catalogue's recurrent, sparse, graph and sequence models, and the ones with habits of their
// own, in parallel against one device.
#include "tests/models/adaptive.h"
#include "tests/models/dlrm.h"
#include "tests/models/graph_convolution.h"
#include "tests/models/gru_attention.h"
#include "tests/models/in_place_views.h"
#include "tests/models/linear_attention.h"
#include "tests/models/lstm_tagger.h"
#include "tests/models/own_functions.h"
#include "tests/models/wavenet.h"
#include "tests/support/catalogue.h"
#include "tests/support/mode_catalogue.h"
#include "tests/support/pipeline_catalogue.h"
#include "tests/support/recomputation_catalogue.h"
#include "tests/support/sequence_catalogue.h"

namespace catalogue {
namespace {

namespace F = torch::nn::functional;

/// Four sentences of six words, 0 where they are shorter; each half of the batch has as many words.
torch::Tensor sentences(int64_t vocabulary) {
  auto words = torch::randint(1, vocabulary, {4, 6});
  for (const int64_t row : {1, 3}) words[row].slice(0, 2).fill_(0);
  return words;
}

Entry tagger(bool packed) {
  using Model = models::tagger::LstmTagger;
  const auto make = [packed] {
    models::tagger::Options options;
    options.packed = packed;
    options.projection = packed ? 0 : 3;
    return Model(options);
  };
  const auto batch = [](int) {
    const auto words = sentences(31);
    return Batch{{words}, torch::randint(5, {4, 6}).masked_fill(words == 0, -100)};
  };
  Entry made = entry<Model>(packed ? "lstm_tagger_packed" : "lstm_tagger_padded", make, batch,
                            one_to_one<Model>, [](const Tensors& outputs, const Batch& batch) {
                              const auto& tags = outputs[0];
                              return F::cross_entropy(
                                  tags.view({-1, tags.size(-1)}), batch.target.reshape(-1),
                                  F::CrossEntropyFuncOptions().ignore_index(-100));
                            });
  made.counts_words = true;
  return made;
}

Entry lstm_tagger_packed() {
  return tagger(true);
}
Entry lstm_tagger_padded() {
  return tagger(false);
}

Entry gru_attention() {
  using Model = models::seq2seq::Seq2Seq;
  const auto batch = [](int) {
    return Batch{{sentences(23), torch::randint(29, {4, 5})}, torch::randint(29, {4, 5})};
  };
  Entry made = entry<Model>(
      "gru_attention", [] { return Model(); }, batch, two_to_one<Model>,
      [](const Tensors& outputs, const Batch& batch) {
        return F::cross_entropy(outputs[0].transpose(1, 2), batch.target);
      });
  return made;
}

Entry dlrm() {
  using Model = models::dlrm::Dlrm;
  const auto batch = [](int) {
    const auto rows = torch::tensor(models::dlrm::Options().rows).view({1, 4, 1});
    return Batch{{torch::randn({4, 6}), torch::randint(1000, {4, 4, 3}) % rows},
                 torch::randint(2, {4}).to(torch::kFloat)};
  };
  return entry<Model>(
      "dlrm", [] { return Model(); }, batch, two_to_one<Model>,
      [](const Tensors& outputs, const Batch& batch) {
        return F::binary_cross_entropy(outputs[0], batch.target);
      });
}

Entry graph_convolution() {
  using Model = models::graph::GraphNet;
  const auto batch = [](int) { return Batch{{torch::randn({4, 9, 5})}, torch::randint(4, {4})}; };
  return entry<Model>(
      "graph_convolution", [] { return Model(); }, batch, one_to_one<Model>, classification);
}

Entry own_functions() {
  using Model = models::own::OwnFunctions;
  const auto batch = [](int) { return Batch{{torch::randn({4, 9})}, torch::randint(7, {4})}; };
  return entry<Model>(
      "own_functions", [] { return Model(); }, batch, one_to_one<Model>, classification);
}

Entry in_place_views() {
  using Model = models::in_place::InPlace;
  const auto batch = [](int) { return Batch{{torch::randn({4, 7})}, torch::randint(5, {4})}; };
  Entry made = entry<Model>(
      "in_place_views", [] { return Model(); }, batch, one_to_one<Model>, classification);
  made.batch_coupled = true;  // statistics of the batch
  return made;
}

Entry adaptive() {
  using Model = models::adaptive::Adaptive;
  const auto batch = [](int) { return Batch{{torch::randn({4, 6})}, torch::randint(4, {4})}; };
  return entry<Model>(
      "adaptive", [] { return Model(); }, batch,
      [](auto& model, const Tensors& inputs) {
        const auto out = model.forward(inputs[0]);
        return Tensors{out.logits, out.ponder};
      },
      [](const Tensors& outputs, const Batch& batch) {
        return classification(outputs, batch) + 0.01 * outputs[1].mean();
      });
}

Entry wavenet() {
  using Model = models::wavenet::WaveNet;
  const auto batch = [](int) {
    return Batch{{torch::randint(13, {4, 12}), torch::randint(4, {4})},
                 torch::randint(13, {4, 12})};
  };
  Entry made = entry<Model>(
      "wavenet", [] { return Model(); }, batch, two_to_one<Model>,
      [](const Tensors& outputs, const Batch& batch) {
        return F::nll_loss(F::log_softmax(outputs[0], 1), batch.target);
      });
  return made;
}

Entry linear_attention() {
  using Model = models::linear_attention::LinearLm;
  const auto batch = [](int) {
    return Batch{{torch::randint(19, {4, 7})}, torch::randint(19, {4, 7})};
  };
  return entry<Model>(
      "linear_attention", [] { return Model(); }, batch, one_to_one<Model>, next_token);
}

INSTANTIATE_TEST_SUITE_P(Misc, Catalogue,
                         testing::Combine(testing::Values(lstm_tagger_packed, lstm_tagger_padded,
                                                          gru_attention, dlrm, graph_convolution,
                                                          own_functions, in_place_views, adaptive,
                                                          wavenet, linear_attention),
                                          testing::ValuesIn(kMeshes)),
                         case_name);

// Not among them: packed sequences, a torch::autograd::Function over a boundary, and gradients
// through views of an ordinary tensor, which stages refuse by name.
INSTANTIATE_TEST_SUITE_P(Misc, OnStages,
                         testing::ValuesIn(on_stages({gru_attention, dlrm, graph_convolution,
                                                      adaptive, wavenet, linear_attention,
                                                      lstm_tagger_padded})),
                         stages_case_name);

INSTANTIATE_TEST_SUITE_P(Misc, Recomputed,
                         testing::ValuesIn(recomputed({lstm_tagger_padded, gru_attention, dlrm,
                                                       graph_convolution, adaptive, wavenet,
                                                       linear_attention},
                                                      19)),
                         recomputed_case_name);
INSTANTIATE_TEST_SUITE_P(MiscOnOneStage, Recomputed,
                         testing::ValuesIn(recomputed(
                             {lstm_tagger_packed, own_functions, in_place_views}, 1, on_one_stage)),
                         recomputed_case_name);

INSTANTIATE_TEST_SUITE_P(Misc, CutAlongSequence,
                         testing::ValuesIn(along_sequence({gru_attention, dlrm, graph_convolution,
                                                           wavenet, linear_attention, adaptive},
                                                          3)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Misc, WithoutSequence, testing::Values(lstm_tagger_padded), entry_name);

INSTANTIATE_TEST_SUITE_P(Misc, InAMode,
                         testing::ValuesIn(in_modes({gru_attention, dlrm, graph_convolution,
                                                     wavenet, linear_attention, lstm_tagger_padded},
                                                    3)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(MiscGrids, InAMode, testing::ValuesIn(in_grids({adaptive})), case_name);
INSTANTIATE_TEST_SUITE_P(Misc, WithoutContext, testing::Values(adaptive), entry_name);

}  // namespace
}  // namespace catalogue
