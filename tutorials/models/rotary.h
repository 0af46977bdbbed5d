#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "config_json.h"

/// Rotary positions (Su et al. 2021), as Hugging Face's modeling_rope_utils has them: "default",
/// and "llama3", by which Llama 3.1 reads texts longer than those that it was trained on.
namespace rotary {

/// The entries of "llama3". Waves that the trained length held `high_freq_factor` times stay, those
/// that it did not hold `low_freq_factor` times are slowed down by `factor`, and between the two
/// there is a straight line.
struct Llama3Scaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;
};

struct Rope {
  double theta = 10000.0;
  std::optional<Llama3Scaling> scaling = std::nullopt;

  /// What config.json has as "rope_scaling".
  nlohmann::json scaling_json() const {
    if (!scaling) return nullptr;
    return {{"rope_type", "llama3"},
            {"factor", scaling->factor},
            {"low_freq_factor", scaling->low_freq_factor},
            {"high_freq_factor", scaling->high_freq_factor},
            {"original_max_position_embeddings", scaling->original_max_position_embeddings}};
  }

  /// Of a model's config.json: "rope_theta" and "rope_scaling", or the newer "rope_parameters".
  /// Throws std::runtime_error for a type that is neither "default" nor "llama3".
  static Rope from_json(const nlohmann::json& json) {
    using config_json::value_or;
    const nlohmann::json none = nlohmann::json::object();
    nlohmann::json entries = value_or(json, "rope_scaling", none);
    if (entries.empty()) entries = value_or(json, "rope_parameters", none);
    Rope rope;
    rope.theta = value_or(entries, "rope_theta", value_or(json, "rope_theta", rope.theta));
    config_json::expect(entries, "partial_rotary_factor", 1.0);
    config_json::expect(json, "partial_rotary_factor", 1.0);
    // The key was "type" once.
    const std::string type =
        value_or(entries, "rope_type", value_or(entries, "type", std::string("default")));
    if (type == "default") return rope;
    if (type != "llama3") {
      throw std::runtime_error("config.json: rope_type is \"" + type +
                               "\"; this model is written for \"default\" and \"llama3\"");
    }
    Llama3Scaling scaling;
    entries.at("factor").get_to(scaling.factor);
    entries.at("low_freq_factor").get_to(scaling.low_freq_factor);
    entries.at("high_freq_factor").get_to(scaling.high_freq_factor);
    const char* const trained = "original_max_position_embeddings";
    scaling.original_max_position_embeddings = value_or(
        json, trained,
        value_or(entries, trained, json.at("max_position_embeddings").get<std::int64_t>()));
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      throw std::runtime_error(
          "config.json: high_freq_factor " + std::to_string(scaling.high_freq_factor) +
          " is not above low_freq_factor " + std::to_string(scaling.low_freq_factor));
    }
    rope.scaling = scaling;
    return rope;
  }
};

/// By how much a position turns each half of a pair, [head_dim / 2], in float.
inline torch::Tensor frequencies(const Rope& rope, std::int64_t head_dim, torch::Device device) {
  const torch::Tensor pairs =
      torch::arange(0, head_dim, 2, torch::dtype(torch::kFloat).device(device));
  const torch::Tensor plain = 1.0 / torch::pow(rope.theta, pairs / static_cast<double>(head_dim));
  if (!rope.scaling) return plain;
  const Llama3Scaling& s = *rope.scaling;
  const torch::Tensor times =
      static_cast<double>(s.original_max_position_embeddings) * plain / (2 * M_PI);
  const torch::Tensor kept =
      ((times - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)).clamp(0, 1);
  return (1 - kept) * plain / s.factor + kept * plain;
}

/// The cosines and sines by which positions turn the halves of a head, each [time, head size].
using Rotation = std::pair<torch::Tensor, torch::Tensor>;

inline Rotation rotation(const torch::Tensor& positions, const Rope& rope, std::int64_t head_dim,
                         torch::Dtype dtype) {
  const torch::Tensor turned = frequencies(rope, head_dim, positions.device());
  const torch::Tensor angles = positions.to(torch::kFloat).unsqueeze(1) * turned.unsqueeze(0);
  const torch::Tensor both = torch::cat({angles, angles}, -1);
  return {both.cos().to(dtype), both.sin().to(dtype)};
}

/// `x` [batch, heads, time, head size], turned.
inline torch::Tensor rotate(const torch::Tensor& x, const Rotation& by) {
  const auto halves = x.chunk(2, -1);
  return x * by.first + torch::cat({-halves[1], halves[0]}, -1) * by.second;
}

}  // namespace rotary
