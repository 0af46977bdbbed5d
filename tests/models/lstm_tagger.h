#pragma once

#include <torch/torch.h>

// A tagger for padded sentences: torch::nn::LSTM in both directions over a packed sequence (or,
// with projected states, over the padding as well), tags from a Linear, as in the classic
// tutorials.
namespace models::tagger {

struct Options {
  int64_t vocabulary = 31, padding = 0, embedding = 10, hidden = 7, layers = 2, tags = 5;
  int64_t projection = 0;  ///< of the LSTM's states, 0: none
  bool packed = true;
};

struct LstmTaggerImpl : torch::nn::Module {
  explicit LstmTaggerImpl(const Options& o = {}) : options(o) {
    word_embeddings = register_module(
        "word_embeddings",
        torch::nn::Embedding(
            torch::nn::EmbeddingOptions(o.vocabulary, o.embedding).padding_idx(o.padding)));
    auto lstm_options = torch::nn::LSTMOptions(o.embedding, o.hidden)
                            .num_layers(o.layers)
                            .batch_first(true)
                            .bidirectional(true);
    if (o.projection > 0) lstm_options.proj_size(o.projection);
    lstm = register_module("lstm", torch::nn::LSTM(lstm_options));
    const auto states = 2 * (o.projection > 0 ? o.projection : o.hidden);
    hidden2hidden = register_module("hidden2hidden", torch::nn::Linear(states, 2 * o.hidden));
    hidden2tag = register_module("hidden2tag", torch::nn::Linear(2 * o.hidden, o.tags));
  }

  torch::Tensor forward(const torch::Tensor& sentences) {
    const auto embeds = word_embeddings(sentences);
    torch::Tensor states;
    if (options.packed) {
      namespace rnn = torch::nn::utils::rnn;
      const auto lengths = sentences.ne(options.padding).sum(1);
      auto packed = rnn::pack_padded_sequence(embeds, lengths, /*batch_first=*/true,
                                              /*enforce_sorted=*/false);
      packed = std::get<0>(lstm->forward_with_packed_input(packed));
      states = std::get<0>(rnn::pad_packed_sequence(packed, /*batch_first=*/true,
                                                    /*padding_value=*/0.0, sentences.size(1)));
    } else {
      states = std::get<0>(lstm(embeds));
    }
    return hidden2tag(torch::tanh(hidden2hidden(states)));
  }

  Options options;
  torch::nn::Embedding word_embeddings{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear hidden2hidden{nullptr}, hidden2tag{nullptr};
};
TORCH_MODULE(LstmTagger);

}  // namespace models::tagger
