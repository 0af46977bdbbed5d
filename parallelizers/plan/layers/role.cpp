#include "parallelizers/plan/layers/role.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>

namespace oslo {
namespace {

/// Layers that hold less than this part of the parameters need not be cut.
constexpr double kSmall = 0.02;

/// The path without the numbers of layers in a list; those of a parameter's own name ("w1", "w2")
/// tell it from its neighbours.
std::string role_name(const LayerPlan& layer) {
  const std::string& path = layer.path;
  const size_t last = path.rfind('.') == std::string::npos ? 0 : path.rfind('.') + 1;
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(path[i])) != 0;
    if (!digit || (i >= last && layer.parameter())) {
      text += path[i];
    } else if (text.empty() || text.back() != '#') {
      text += '#';
    }
  }
  return c10::str(text, layer.weight().sizes(), static_cast<int>(layer.kind), layer.asked_for,
                  layer.computed, layer.decided);
}

bool divides(LayerPlan layer, const LayerStyle& style, int ranks) {
  layer.style = style;
  const int64_t size = layer.cut_size();
  return size % (style.blocks * style.unit) == 0 && size / style.unit >= ranks;
}

/// The cuts that a layer can have.
std::vector<LayerStyle> options_of(const LayerPlan& layer, int ranks) {
  std::vector<LayerStyle> options = layer.traits().options(layer, ranks);
  std::erase_if(options, [&](const LayerStyle& style) { return !divides(layer, style, ranks); });
  if (options.empty()) options.push_back({});
  return options;
}

}  // namespace

BareStyle bare(const LayerStyle& style) {
  return {style.style, style.dim};
}

bool Role::has(const LayerStyle& style) const {
  return std::any_of(options.begin(), options.end(), [&](const LayerStyle& option) {
    return bare(option) == bare(style) && option.blocks == style.blocks &&
           option.unit == style.unit;
  });
}

bool Role::offers(const BareStyle& style) const {
  return std::any_of(options.begin(), options.end(),
                     [&](const LayerStyle& option) { return bare(option) == style; });
}

void Role::forbid_whole() {
  std::erase_if(options, [](const LayerStyle& option) { return option.style == Style::replicate; });
}

std::vector<Role> roles_of(const std::vector<LayerPlan>& layers, int ranks) {
  std::vector<Role> roles;
  int64_t total = 0;
  std::map<const c10::TensorImpl*, bool> known;
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerPlan& layer = layers[i];
    if (!known.emplace(layer.weight().unsafeGetTensorImpl(), true).second) continue;
    if (layer.computed) continue;  // nobody uses it
    total += layer.weight_elements();
    const auto [found, added] = by_name.emplace(role_name(layer), roles.size());
    if (added) {
      roles.push_back({{},
                       options_of(layer, ranks),
                       layer.free(),
                       false,
                       layer.parameter(),
                       layer.recurrent()});
    }
    roles[found->second].layers.push_back(i);
  }
  for (Role& role : roles) {
    const LayerPlan& layer = layers[role.layers.front()];
    // The first plan's own cut is always one: the result must not be worse.
    const bool cut = layer.style.style != Style::replicate;
    if (cut && !role.offers(bare(layer.style))) role.options.push_back(layer.style);
    const int64_t size = layer.weight_elements() * static_cast<int64_t>(role.layers.size());
    role.large = static_cast<double>(size) >= kSmall * static_cast<double>(total);
    const bool waits = role.recurrent || layer.kind == LayerKind::transposed;  // for the example
    role.shares_work = waits || (cut && !layer.embedding() && !role.parameter);
    const bool table = (layer.embedding() || layer.embeds_patches()) && !cut;
    const bool may_stay = table || role.parameter || role.recurrent || !role.large;
    if (may_stay && !role.offers_whole()) {
      role.options.insert(role.options.begin(), LayerStyle{});
    }
  }
  return roles;
}

std::string time_text(double seconds) {
  const char* unit = " s";
  if (seconds < 1) {
    seconds *= 1e3;
    unit = " ms";
  }
  if (seconds < 0.1 && unit[1] == 'm') {
    seconds *= 1e3;
    unit = " us";
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.3g%s", seconds, unit);
  return text;
}

}  // namespace oslo
