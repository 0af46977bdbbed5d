#include "checkpoint/pretrained/family.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace oslo {

bool matches_pattern(const std::string& name, const std::string& pattern) {
  std::string_view left = name, right = pattern;
  while (true) {
    const size_t end = left.find('.'), pattern_end = right.find('.');
    const std::string_view component = right.substr(0, pattern_end);
    if (component != "*" && component != left.substr(0, end)) return false;
    const bool last = end == std::string_view::npos;
    if (last != (pattern_end == std::string_view::npos)) return false;
    if (last) return true;
    left.remove_prefix(end + 1);
    right.remove_prefix(pattern_end + 1);
  }
}

std::string PretrainedFamily::without_prefix(const std::string& name) const {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

bool PretrainedFamily::lies_transposed(const std::string& name) const {
  const std::string inner = without_prefix(name);
  return std::any_of(transposed.begin(), transposed.end(),
                     [&](const std::string& pattern) { return matches_pattern(inner, pattern); });
}

bool PretrainedFamily::is_spare(const std::string& name) const {
  const std::string inner = without_prefix(name);
  return std::any_of(spare.begin(), spare.end(),
                     [&](const std::string& pattern) { return matches_pattern(inner, pattern); });
}

std::vector<std::string> PretrainedFamily::names_for(const std::string& name) const {
  std::string today = name;
  const size_t dot = name.rfind('.');
  for (const auto& [old, current] : renamed) {
    if (dot != std::string::npos && name.compare(dot + 1, std::string::npos, old) == 0) {
      today = name.substr(0, dot + 1) + current;
    }
  }
  std::vector<std::string> names = {today};
  if (!prefix.empty()) {
    names.push_back(today.starts_with(prefix) ? without_prefix(today) : prefix + today);
  }
  if (modules.empty()) return names;
  for (std::string other : std::vector<std::string>(names)) {
    for (const auto& [old, current] : modules) {
      const size_t at = other.find(old);
      if (at != std::string::npos) other.replace(at, old.size(), current);
    }
    names.push_back(other);
  }
  return names;
}

const std::vector<PretrainedFamily>& pretrained_families() {
  static const std::vector<PretrainedFamily> families = {
      {.model_type = "gpt2",
       .prefix = "transformer.",
       .transposed = {"h.*.attn.c_attn.weight", "h.*.attn.c_proj.weight", "h.*.mlp.c_fc.weight",
                      "h.*.mlp.c_proj.weight"},
       .spare = {"h.*.attn.bias", "h.*.attn.masked_bias"},
       .renamed = {},
       .ties = {{"lm_head.weight", "transformer.wte.weight"}},
       .tied = true},
      {.model_type = "llama",
       .prefix = "model.",
       .transposed = {},
       .spare = {"layers.*.self_attn.rotary_emb.inv_freq"},
       .renamed = {},
       .ties = {{"lm_head.weight", "model.embed_tokens.weight"}},
       .tied = false},
      {.model_type = "bert",
       .prefix = "bert.",
       .transposed = {},
       .spare = {"embeddings.position_ids"},
       .renamed = {{"gamma", "weight"}, {"beta", "bias"}},
       .ties = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
                {"cls.predictions.decoder.bias", "cls.predictions.bias"}},
       .tied = true},
      {.model_type = "t5",
       .prefix = "",
       .transposed = {},
       .spare = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"},
       .renamed = {},
       .ties = {{"lm_head.weight", "shared.weight"}},
       .tied = true},
      {.model_type = "vit",
       .prefix = "vit.",
       .transposed = {},
       .spare = {},
       .renamed = {},
       .modules = {{"encoder.layer.", "layers."},
                   {"attention.attention.query.", "attention.q_proj."},
                   {"attention.attention.key.", "attention.k_proj."},
                   {"attention.attention.value.", "attention.v_proj."},
                   {"attention.output.dense.", "attention.o_proj."},
                   {".intermediate.dense.", ".mlp.fc1."},
                   {".output.dense.", ".mlp.fc2."}},
       .ties = {},
       .tied = false},
  };
  return families;
}

const PretrainedFamily* find_family(const nlohmann::json& config) {
  if (!config.is_object()) return nullptr;
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) return nullptr;
  for (const PretrainedFamily& family : pretrained_families()) {
    if (family.model_type == type->get_ref<const std::string&>()) return &family;
  }
  return nullptr;
}

}  // namespace oslo
