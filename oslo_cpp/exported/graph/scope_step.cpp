// A node that runs a graph of its own under another setting of LibTorch's.
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <optional>

#include "mpu/base/error.h"
#include "oslo_cpp/exported/file/codes.h"
#include "oslo_cpp/exported/graph/build_graph.h"
#include "oslo_cpp/exported/graph/steps.h"

namespace oslo::exported {
namespace {

/// Puts autocast back to what it was, at the end of its life.
class AutocastGuard {
 public:
  AutocastGuard(c10::DeviceType device, std::optional<c10::ScalarType> type, bool enabled,
                bool caches)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        was_type_(at::autocast::get_autocast_dtype(device)),
        cached_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_enabled(device, enabled);
    if (type) at::autocast::set_autocast_dtype(device, *type);
    at::autocast::set_autocast_cache_enabled(caches);
    at::autocast::increment_nesting();
  }
  ~AutocastGuard() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, was_type_);
    at::autocast::set_autocast_cache_enabled(cached_);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_;
  bool was_enabled_;
  c10::ScalarType was_type_;
  bool cached_;
};

/// What holds while the inner graph runs.
struct Setting {
  std::optional<bool> gradients;
  std::optional<c10::DeviceType> autocast_device;
  std::optional<c10::ScalarType> autocast_type;
  bool autocast = false;
  bool autocast_caches = true;
};

class ScopeStep final : public Step {
 public:
  ScopeStep(std::string name, Setting setting, std::shared_ptr<const Graph> graph,
            std::vector<BoundArgument> arguments, std::vector<std::vector<int>> outputs)
      : Step(std::move(name)),
        setting_(setting),
        graph_(std::move(graph)),
        arguments_(std::move(arguments)),
        outputs_(std::move(outputs)) {}

  void run(Values& values) const override {
    Values inputs;
    inputs.reserve(arguments_.size());
    for (const BoundArgument& argument : arguments_) inputs.push_back(argument.value(values));
    std::optional<c10::AutoGradMode> gradients;
    if (setting_.gradients) gradients.emplace(*setting_.gradients);
    std::optional<AutocastGuard> autocast;
    if (setting_.autocast_device) {
      autocast.emplace(*setting_.autocast_device, setting_.autocast_type, setting_.autocast,
                       setting_.autocast_caches);
    }
    std::vector<c10::IValue> results = graph_->run(std::move(inputs));
    size_t next = 0;
    for (const auto& slots : outputs_) {
      if (slots.empty()) ++next;  // a result that is none
      for (const int slot : slots) values[slot] = std::move(results[next++]);
    }
  }

  std::vector<int> slots() const override {
    std::vector<int> found;
    for (const BoundArgument& argument : arguments_) {
      for (const int slot : argument.slots()) found.push_back(slot);
    }
    for (const auto& output : outputs_) found.insert(found.end(), output.begin(), output.end());
    return found;
  }

 private:
  Setting setting_;
  std::shared_ptr<const Graph> graph_;
  std::vector<BoundArgument> arguments_;
  std::vector<std::vector<int>> outputs_;
};

/// The argument at a place, of the kind that the operator has there.
Document positional(const Node& node, size_t place, const char* wanted) {
  OSLO_CHECK(place < node.arguments.size(), node.where, ": argument ", place, " is missing");
  const auto [kind, value] = node.arguments[place].second.choice();
  OSLO_CHECK(kind == wanted, node.where, ": argument ", place, " is written as '", kind, "', and '",
             wanted, "' is what stands there");
  return value;
}

/// The kinds of values, a list of tensors as each of them.
std::vector<std::string> kinds_of(const std::vector<Document>& written) {
  std::vector<std::string> kinds;
  for (const Document& item : written) {
    const auto [kind, value] = item.choice();
    if (kind == "as_tensors") {
      kinds.insert(kinds.end(), value.items().size(), "as_tensor");
    } else {
      kinds.push_back(kind);
    }
  }
  return kinds;
}

void check_kinds(const Node& node, const char* what, const std::vector<std::string>& graph,
                 const std::vector<std::string>& around) {
  OSLO_CHECK(graph == around, node.where, ": its graph has the ", what, " (",
             c10::Join(", ", graph), ") and the node has (", c10::Join(", ", around), ")");
}

/// Of wrap_with_autocast(device_type, dtype, enabled, cache_enabled, graph, ...).
Setting autocast_of(const Node& node) {
  Setting setting;
  const Document device = positional(node, 0, "as_string");
  try {
    setting.autocast_device = c10::Device(device.text()).type();
  } catch (const c10::Error&) {
    fail(node.where, ": '", device.text(), "' is no device");
  }
  const auto kind_at = [&](size_t place) {
    return place < node.arguments.size() ? node.arguments[place].second.choice().first : "";
  };
  if (kind_at(1) != "as_none") {
    setting.autocast_type = scalar_type_of(positional(node, 1, "as_scalar_type"));
  }
  setting.autocast = positional(node, 2, "as_bool").truth();
  if (kind_at(3) != "as_none") setting.autocast_caches = positional(node, 3, "as_bool").truth();
  return setting;
}

}  // namespace

std::unique_ptr<Step> make_scope_step(const Node& node, Names& names, const GraphContext& context) {
  Setting setting;
  size_t place = 1;  // of the graph
  if (node.target == "torch.ops.higher_order.wrap_with_set_grad_enabled") {
    setting.gradients = positional(node, 0, "as_bool").truth();
  } else if (node.target == "torch.ops.higher_order.wrap_with_autocast") {
    setting = autocast_of(node);
    place = 4;
  } else {
    fail(node.where,
         ": operators around graphs are supported for torch.no_grad, "
         "torch.set_grad_enabled and torch.autocast; keep others out of the exported module");
  }
  const Document written = positional(node, place, "as_graph").member("graph").at(node.where);
  std::vector<BoundArgument> arguments;
  GraphContext inner = context;
  std::set<std::string> counters;
  inner.counters = &counters;
  const std::vector<Document> inputs = written.member("inputs").items();
  std::vector<std::string> given;
  for (size_t i = place + 1; i < node.arguments.size(); ++i) {
    const Document& argument = node.arguments[i].second;
    arguments.push_back(bind_any(argument, names));
    const auto [kind, value] = argument.choice();
    given.push_back(kind);
    const bool counter =
        kind == "as_tensor" && context.counters->count(value.member("name").text()) > 0;
    if (counter && given.size() <= inputs.size()) {
      counters.insert(inputs[given.size() - 1].choice().second.member("name").text());
    }
  }
  check_kinds(node, "inputs", kinds_of(inputs), given);
  check_kinds(node, "results", kinds_of(written.member("outputs").items()), kinds_of(node.outputs));
  auto graph = build_graph(written, inner);
  auto outputs = define_outputs(node, names);
  return std::make_unique<ScopeStep>(node.where, setting, std::move(graph), std::move(arguments),
                                     std::move(outputs));
}

}  // namespace oslo::exported
