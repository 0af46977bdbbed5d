// The catalogue's language models: each as its author wrote it, in parallel against one device.
#include "tests/models/bart.h"
#include "tests/models/bert.h"
#include "tests/models/cached_decoder.h"
#include "tests/models/gpt2.h"
#include "tests/models/gpt_neox.h"
#include "tests/models/llama.h"
#include "tests/models/mixture_of_experts.h"
#include "tests/models/roberta.h"
#include "tests/models/t5.h"
#include "tests/support/budget_catalogue.h"
#include "tests/support/catalogue.h"
#include "tests/support/mode_catalogue.h"
#include "tests/support/pipeline_catalogue.h"
#include "tests/support/recomputation_catalogue.h"
#include "tests/support/sequence_catalogue.h"
#include "tests/support/zero_catalogue.h"

namespace catalogue {
namespace {

torch::Tensor token_loss(const torch::Tensor& logits, const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                              target.reshape({-1}));
}

torch::Tensor first_output_loss(const Tensors& outputs, const Batch& batch) {
  return token_loss(outputs[0], batch.target);
}

std::function<Batch(int)> language(int64_t vocabulary, int64_t length = 11) {
  return [=](int) {
    return Batch{{torch::randint(vocabulary, {4, length})},
                 torch::randint(vocabulary, {4, length})};
  };
}

Entry gpt2() {
  return entry<models::GPT2>(
      "gpt2", [] { return models::GPT2(models::GPT2Options()); }, language(64),
      one_to_one<models::GPT2>, first_output_loss);
}

Entry gpt2_by_hand() {
  const auto make = [] {
    models::GPT2Options options;
    options.fused_attention = false;
    options.vocabulary = 53;
    return models::GPT2(options);
  };
  return entry<models::GPT2>("gpt2_by_hand", make, language(53), one_to_one<models::GPT2>,
                             first_output_loss);
}

Entry llama() {
  return entry<models::Llama>(
      "llama", [] { return models::Llama(models::LlamaOptions()); }, language(70),
      one_to_one<models::Llama>, first_output_loss);
}

Entry bert() {
  const auto batch = [](int) {
    const models::BertOptions options;
    auto tokens = torch::randint(1, options.vocabulary, {4, 9});
    tokens.slice(1, 7, 9).fill_(options.padding);
    return Batch{{tokens}, torch::randint(options.labels, {4})};
  };
  return entry<models::Bert>(
      "bert", [] { return models::Bert(models::BertOptions()); }, batch, one_to_one<models::Bert>,
      [](const Tensors& outputs, const Batch& batch) {
        return torch::nn::functional::cross_entropy(outputs[0], batch.target);
      });
}

Entry gpt_neox() {
  return entry<models::GptNeoX>(
      "gpt_neox", [] { return models::GptNeoX(models::GptNeoXConfig()); }, language(53),
      one_to_one<models::GptNeoX>, first_output_loss);
}

/// As many masked tokens in every row, so that halves of a batch weigh the same.
Entry roberta() {
  const auto batch = [](int) {
    auto tokens = torch::randint(5, 59, {4, 10});
    tokens[1].slice(0, 8).fill_(1);
    tokens[3].slice(0, 6).fill_(1);
    auto labels = torch::full({4, 10}, -100);
    for (const int64_t position : {1, 4, 5}) {
      labels.select(1, position).copy_(tokens.select(1, position));
      tokens.select(1, position).fill_(3);
    }
    return Batch{{tokens}, labels};
  };
  return entry<models::RobertaForMaskedLM>(
      "roberta", [] { return models::RobertaForMaskedLM(models::RobertaConfig()); }, batch,
      one_to_one<models::RobertaForMaskedLM>, first_output_loss);
}

Entry t5() {
  const auto batch = [](int) {
    auto mask = torch::ones({4, 9});
    mask[2].slice(0, 6).zero_();
    const auto labels = torch::randint(50, {4, 7});
    return Batch{{torch::randint(50, {4, 9}), mask, labels}, labels};
  };
  return entry<models::T5>(
      "t5", [] { return models::T5(models::T5Config()); }, batch,
      [](auto& model, const Tensors& inputs) {
        return Tensors{model.forward(inputs[0], inputs[1], inputs[2])};
      },
      first_output_loss);
}

Entry bart() {
  const auto batch = [](int) {
    auto tokens = torch::randint(3, 47, {4, 9});
    tokens[1].slice(0, 7).fill_(1);
    const auto labels = torch::randint(3, 47, {4, 6});
    return Batch{{tokens, labels}, labels};
  };
  Entry made = entry<models::Bart>(
      "bart", [] { return models::Bart(models::BartConfig()); }, batch, two_to_one<models::Bart>,
      first_output_loss);
  made.runs_in_bf16 = false;  // LibTorch's multi-head attention has no bf16 mask
  return made;
}

Entry mixture_of_experts() {
  Entry made = entry<models::MixtureOfExperts>(
      "mixture_of_experts", [] { return models::MixtureOfExperts(models::MoeConfig()); },
      language(45),
      [](auto& model, const Tensors& inputs) {
        const auto [logits, router_logits] = model.forward(inputs[0]);
        return Tensors{logits, router_logits};
      },
      [](const Tensors& outputs, const Batch& batch) {
        return token_loss(outputs[0], batch.target) +
               0.02 * models::load_balancing_loss(outputs[1], models::MoeConfig());
      });
  made.batch_coupled = true;  // the balance is one of batch statistics
  return made;
}

Entry cached_decoder() {
  Entry made = entry<models::CachedDecoder>(
      "cached_decoder", [] { return models::CachedDecoder(models::CachedDecoderOptions()); },
      language(41), one_to_one<models::CachedDecoder>, first_output_loss);
  made.sgd = true;
  return made;
}

INSTANTIATE_TEST_SUITE_P(Transformers, Catalogue,
                         testing::Combine(testing::Values(gpt2, gpt2_by_hand, llama, bert, gpt_neox,
                                                          roberta, t5, bart, mixture_of_experts,
                                                          cached_decoder),
                                          testing::ValuesIn(kMeshes)),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Transformers, OnStages,
                         testing::ValuesIn(on_stages({t5, gpt2, gpt2_by_hand, llama, bert, gpt_neox,
                                                      roberta, bart, mixture_of_experts,
                                                      cached_decoder})),
                         stages_case_name);

INSTANTIATE_TEST_SUITE_P(TransformersInThreeDimensions, OnStages,
                         testing::ValuesIn(in_three_dimensions({bert, t5})), stages_case_name);

INSTANTIATE_TEST_SUITE_P(Transformers, Recomputed,
                         testing::ValuesIn(recomputed({gpt2, gpt2_by_hand, llama, bert, gpt_neox,
                                                       roberta, t5, bart, mixture_of_experts,
                                                       cached_decoder},
                                                      0)),
                         recomputed_case_name);

INSTANTIATE_TEST_SUITE_P(Transformers, AtAStage,
                         testing::ValuesIn(at_stages({{gpt2},
                                                      {llama},
                                                      {bert},
                                                      {gpt2_by_hand},
                                                      {t5},
                                                      {mixture_of_experts},
                                                      {gpt_neox},
                                                      {bart},
                                                      {cached_decoder}},
                                                     0)),
                         zero_case_name);

INSTANTIATE_TEST_SUITE_P(Transformers, WithinBudget,
                         testing::Values(gpt2, gpt2_by_hand, llama, bert, gpt_neox, roberta, t5,
                                         bart, mixture_of_experts, cached_decoder),
                         budget_case_name);

INSTANTIATE_TEST_SUITE_P(Transformers, CutAlongSequence,
                         testing::ValuesIn(along_sequence({gpt2, gpt2_by_hand, llama, bert,
                                                           gpt_neox, roberta, t5, bart,
                                                           mixture_of_experts, cached_decoder},
                                                          10)),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Transformers, InAMode,
                         testing::ValuesIn(in_modes({gpt2, gpt2_by_hand, llama, bert, gpt_neox,
                                                     roberta, t5, bart, mixture_of_experts,
                                                     cached_decoder},
                                                    10)),
                         case_name);

}  // namespace
}  // namespace catalogue
