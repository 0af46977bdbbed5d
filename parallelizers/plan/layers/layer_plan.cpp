#include "parallelizers/plan/layers/layer_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "mpu/base/error.h"
#include "parallelizers/modules/module_tree.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

bool belongs_to(const LayerView& layer, const at::Tensor& parameter) {
  return layer.weight.registered.is_same(parameter) ||
         std::any_of(layer.others.begin(), layer.others.end(),
                     [&](const NamedSlot& other) { return other.registered.is_same(parameter); });
}

/// A parameter of two or more dimensions (ones do not count) that an author registered, in a module
/// of theirs or beside those of a layer: what is multiplied with, rather than a scale or a bias.
bool is_bare_matrix(const ModuleView& module, const ParameterView& parameter) {
  if (!module.own_matrices || parameter.member != nullptr) return false;
  if (module.layer && belongs_to(*module.layer, parameter.registered)) return false;
  if (parameter.registered.layout() != at::kStrided) return false;
  const auto sizes = parameter.registered.sizes();
  return std::count_if(sizes.begin(), sizes.end(), [](int64_t size) { return size > 1; }) > 1;
}

/// Takes the layer of `entry`, unless forward makes its weight of nothing that is registered.
void add_layer(std::vector<LayerPlan>& layers, const ModuleView& entry) {
  LayerPlan layer;
  layer.path = entry.path;
  layer.name = entry.name;
  layer.module = entry.module;
  layer.parent = entry.parent;
  layer.kind = entry.layer->kind;
  layer.view = *entry.layer;
  const ParameterSlot& weight = layer.view.weight;
  const bool in_member = weight.member != nullptr && weight.member->defined();
  if (!in_member || !weight.member->is_leaf()) {
    if (!weight.registered.defined()) return;
    if (weight.member != nullptr) layer.set_computed();
  }
  for (const NamedSlot& other : layer.view.others) {
    if (other.computed() && !layer.computed) layer.set_computed();
  }
  layers.push_back(std::move(layer));
}

void add_matrix(std::vector<LayerPlan>& layers, const ModuleView& entry,
                const ParameterView& parameter) {
  LayerPlan layer;
  layer.path = parameter.path;
  layer.name = parameter.name;
  layer.module = entry.module;
  layer.parent = entry.parent;
  layer.kind = layer.view.kind = LayerKind::parameter;
  layer.view.weight = parameter;
  layer.view.weight_name = parameter.name;
  layers.push_back(std::move(layer));
}

/// The style that cuts a shared weight as one of `leader` does, in the words of the other layer's
/// class.
LayerStyle tied_style(const LayerPlan& leader, LayerStyle style, const LayerTraits& traits) {
  const Placement placement = leader.weight_placement(style);
  if (!placement.is_shard()) return style;
  style.style = placement.dim() == 0 ? traits.first : traits.second;
  if (style.style == Style::shard) style.dim = placement.dim();
  return style;
}

}  // namespace

const at::Tensor& LayerPlan::weight() const {
  const bool member = view.weight.member != nullptr && !computed;
  return member ? *view.weight.member : view.weight.registered;
}

at::Tensor LayerPlan::bias() const {
  const at::Tensor* member = view.bias.member;
  if (member == nullptr) return view.bias.registered;
  return member->defined() && member->is_leaf() ? *member : at::Tensor();
}

void LayerPlan::set_computed() {
  OSLO_CHECK(!asked_for || !cuts_weight(), why, ": ", path,
             " computes its weight in forward from other parameters; plan those, by "
             "shard(dimension)");
  computed = true;
  set_styles({});
  why = "computed in forward from other parameters, which are planned in its place";
}

std::string LayerPlan::weight_path() const {
  if (parameter()) return path;
  return join_path(path, weight_name());
}

std::vector<LayerPlan::Part> LayerPlan::parts() const {
  std::vector<Part> parts{{weight_name(), weight_path(), weight(), view.weight.member}};
  if (const at::Tensor own = bias(); own.defined()) {
    parts.push_back(
        {view.bias_name, join_path(path, view.bias_name), own, view.bias.member, /*bias=*/true});
  }
  for (const NamedSlot& other : view.others) {
    const at::Tensor& own = computed ? other.registered : other.in_use();
    if (!own.defined()) continue;  // a cell without biases
    parts.push_back({other.name, join_path(path, other.name), own, other.member, own.dim() == 1});
  }
  return parts;
}

int64_t LayerPlan::weight_elements() const {
  int64_t elements = weight().numel();
  for (const NamedSlot& other : view.others) {
    if (other.in_use().defined()) elements += other.in_use().numel();
  }
  return elements;
}

const LayerStyle& LayerPlan::style_on(const std::string& name) const {
  static const LayerStyle whole;
  if (name == axis) return style;
  const auto found = other_styles.find(name);
  return found == other_styles.end() ? whole : found->second;
}

const AxisUse& LayerPlan::use_on(const std::string& name) const {
  return name == axis ? use : style_on(name).use;
}

void LayerPlan::set_styles(const AxisStyles& styles) {
  style = {};
  other_styles.clear();
  for (const auto& [name, wanted] : styles) {
    (name.empty() || name == axis ? style : other_styles[name]) = wanted;
  }
  use = style.use;
}

bool LayerPlan::cuts_weight() const {
  const auto cuts = [&](const LayerStyle& wanted) { return weight_placement(wanted).is_shard(); };
  return cuts(style) || std::any_of(other_styles.begin(), other_styles.end(),
                                    [&](const auto& other) { return cuts(other.second); });
}

bool LayerPlan::cuts_bias() const {
  const auto cuts = [&](const LayerStyle& wanted) { return bias_placement(wanted).is_shard(); };
  return cuts(style) || std::any_of(other_styles.begin(), other_styles.end(),
                                    [&](const auto& other) { return cuts(other.second); });
}

bool LayerPlan::cuts_weight_like(const LayerPlan& other) const {
  const auto differs = [&](const std::string& name) {
    return weight_placement(style_on(name)) != other.weight_placement(other.style_on(name));
  };
  const auto some_differ = [&](const std::map<std::string, LayerStyle>& styles) {
    return std::any_of(styles.begin(), styles.end(),
                       [&](const auto& style) { return differs(style.first); });
  };
  return !differs(axis) && !some_differ(other_styles) && !some_differ(other.other_styles);
}

std::string LayerPlan::style_text() const {
  if (other_styles.empty()) return style.name();
  std::string text;
  const auto add = [&](const std::string& name, const LayerStyle& wanted) {
    if (wanted.style == Style::replicate) return;
    text += c10::str(text.empty() ? "" : "; ", name, ": ", wanted.name());
  };
  add(axis, style);
  for (const auto& [name, wanted] : other_styles) add(name, wanted);
  return text.empty() ? style.name() : text;
}

std::vector<Placement> LayerPlan::weight_placements(const Mesh& mesh) const {
  std::vector<Placement> placements;
  for (int i = 0; i < mesh.axes(); ++i) {
    placements.push_back(weight_placement(style_on(mesh.axis(i)->name())));
  }
  return placements;
}

std::vector<Placement> LayerPlan::bias_placements(const Mesh& mesh) const {
  std::vector<Placement> placements;
  for (int i = 0; i < mesh.axes(); ++i) {
    placements.push_back(bias_placement(style_on(mesh.axis(i)->name())));
  }
  return placements;
}

Placement LayerPlan::weight_placement(const LayerStyle& style) const {
  if (style.style == Style::replicate) return Placement::replicate();
  if (style.style == Style::shard) return Placement::shard(style.dim, style.blocks, style.unit);
  const bool inputs = style.style == Style::row;
  const bool inputs_first = traits().first == Style::row;
  const bool second = inputs_first ? !inputs : inputs || style.style == traits().second;
  return Placement::shard(second ? 1 : 0, style.blocks, style.unit);
}

Placement LayerPlan::bias_placement(const LayerStyle& style) const {
  const bool cut = !embedding() && (style.style == Style::column || style.style == Style::vocab);
  return cut ? Placement::shard(0, style.blocks, style.unit) : Placement::replicate();
}

int64_t LayerPlan::cut_size(const LayerStyle& style) const {
  const Placement placement = weight_placement(style);
  if (!placement.is_shard()) return 0;
  const Mark* mark = mark_of(weight());
  if (mark == nullptr) return weight().size(placement.dim());
  return mark->layout->global_sizes(weight().sizes())[placement.dim()];
}

bool LayerPlan::embeds_patches() const {
  constexpr int64_t kMostColours = 4;
  if (!view.disjoint || view.groups > 1) return false;
  const auto sizes = weight().sizes();
  return sizes[1] <= kMostColours && c10::multiply_integers(sizes.slice(2)) > 1;
}

std::vector<LayerPlan> plannable_layers(const ModelView& model, const std::string& axis) {
  std::vector<LayerPlan> layers;
  auto parameter = model.parameters().begin();
  for (size_t position = 0; position < model.modules().size(); ++position) {
    const ModuleView& entry = model.modules()[position];
    if (entry.layer) add_layer(layers, entry);
    for (; parameter != model.parameters().end() && parameter->module == position; ++parameter) {
      if (is_bare_matrix(entry, *parameter)) add_matrix(layers, entry, *parameter);
    }
  }
  for (LayerPlan& layer : layers) {
    layer.axis = axis;
    layer.decided = mark_of(layer.weight()) != nullptr;
  }
  // A second name of a layer's weight: the layer decides.
  std::set<const c10::TensorImpl*> weights;
  for (const LayerPlan& layer : layers) {
    if (!layer.parameter()) weights.insert(layer.weight().unsafeGetTensorImpl());
  }
  std::erase_if(layers, [&](const LayerPlan& layer) {
    return layer.parameter() && weights.count(layer.weight().unsafeGetTensorImpl()) != 0;
  });
  return layers;
}

namespace {

/// Whether `member` is a weight of the layer.
bool computes_weight(const LayerPlan& layer, const MemberKeeper::Computed& member) {
  if (member.module != layer.module.get()) return false;
  const std::vector<LayerPlan::Part> parts = layer.parts();
  return std::any_of(parts.begin(), parts.end(), [&](const LayerPlan::Part& part) {
    return !part.bias && part.name == member.name;
  });
}

}  // namespace

bool set_computed(std::vector<LayerPlan>& layers,
                  const std::vector<MemberKeeper::Computed>& computed) {
  bool found = false;
  for (LayerPlan& layer : layers) {
    if (layer.parameter() || layer.computed) continue;
    if (std::none_of(computed.begin(), computed.end(),
                     [&](const auto& member) { return computes_weight(layer, member); })) {
      continue;
    }
    layer.set_computed();
    found = true;
  }
  return found;
}

void forget_computed(const std::vector<LayerPlan>& layers,
                     const std::vector<MemberKeeper::Computed>& computed) {
  for (const LayerPlan& layer : layers) {
    if (!layer.computed) continue;
    for (const LayerPlan::Part& part : layer.parts()) {
      const MemberKeeper::Computed own{layer.module.get(), part.name};
      if (part.bias || std::find(computed.begin(), computed.end(), own) == computed.end()) continue;
      *part.member = part.tensor;
    }
  }
}

void follow_ties(std::vector<LayerPlan>& layers) {
  std::map<const c10::TensorImpl*, std::vector<LayerPlan*>> sharing;
  for (LayerPlan& layer : layers) sharing[layer.weight().unsafeGetTensorImpl()].push_back(&layer);
  for (const auto& [weight, group] : sharing) {
    if (group.size() < 2) continue;
    LayerPlan* leader = group.front();
    for (auto layer = group.rbegin(); layer != group.rend(); ++layer) {
      if ((*layer)->asked_for) leader = *layer;
    }
    for (LayerPlan* layer : group) {
      if (layer == leader) continue;
      LayerPlan tied = *layer;
      tied.style = tied_style(*leader, leader->style, layer->traits());
      tied.other_styles.clear();
      for (const auto& [axis, style] : leader->other_styles) {
        tied.other_styles[axis] = tied_style(*leader, style, layer->traits());
        tied.other_styles[axis].use = {};
      }
      // How its results lie is each layer's own.
      for (const auto& [axis, style] : layer->other_styles) {
        if (style.use != AxisUse{}) tied.other_styles[axis].use = style.use;
      }
      OSLO_CHECK(!layer->asked_for || layer->cuts_weight_like(tied), layer->why, ": ", layer->path,
                 " shares its weight with ", leader->path, ", which is planned as ",
                 leader->style_text(), "; plan both alike");
      layer->style = tied.style;
      layer->other_styles = tied.other_styles;
      if (layer == group.front() || layer->why.rfind("tied to ", 0) != 0) {
        layer->why = "tied to " + leader->path;
      }
      layer->asked_for = false;
    }
    // From now on the first one leads, also when the example asks for other blocks.
    if (leader != group.front()) leader->asked_for = false;
  }
}

}  // namespace oslo
