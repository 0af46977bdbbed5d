#include "oslo_cpp/initialize/little_cut.h"

#include <algorithm>
#include <map>

#include "mpu/base/bytes.h"
#include "parallelizers/plan/layers/role.h"

namespace oslo {
namespace {

/// Less than this part of the bytes is little.
constexpr double kLittle = 0.5;

/// How many classes a line names.
constexpr size_t kMostClasses = 3;

struct Held {
  std::string by;
  int64_t bytes = 0;
};

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

/// What holds the bytes that stay whole, most first.
std::string holders(const std::map<std::string, int64_t>& whole_by_class) {
  std::vector<Held> held;
  for (const auto& [name, bytes] : whole_by_class) held.push_back({name, bytes});
  std::stable_sort(held.begin(), held.end(),
                   [](const Held& a, const Held& b) { return a.bytes > b.bytes; });
  held.resize(std::min(held.size(), kMostClasses));
  std::vector<std::string> parts;
  for (const Held& each : held) parts.push_back(byte_text(each.bytes) + " of " + each.by);
  return joined(parts, ", ");
}

/// What may cut more, for what stays whole.
std::string remedies(const std::vector<LayerPlan>& layers, bool example, bool cut_own) {
  const LayerPlan* own = nullptr;
  bool guessed = false, recurrent = false;
  for (const LayerPlan& layer : layers) {
    if (layer.cuts_weight() || !layer.free()) continue;
    if (layer.recurrent()) {
      recurrent = true;
    } else if (!layer.parameter()) {
      guessed = true;
    } else if (own == nullptr || layer.weight().numel() > own->weight().numel()) {
      own = &layer;
    }
  }
  std::vector<std::string> remedies;
  if (own != nullptr && !(cut_own && example)) {
    remedies.push_back(
        "InitializeOptions::cut_own_parameters with example_inputs, for matrices that modules of "
        "your own register");
  }
  if (own != nullptr) {
    remedies.push_back("\"plan\": {\"" + own->path +
                       "\": \"shard(0)\"}, where forward does not read its sizes");
  }
  if (guessed && !example) {
    remedies.push_back("InitializeOptions::example_inputs, for layers planned by name");
  }
  if (recurrent && !example) {
    remedies.push_back(
        "InitializeOptions::example_inputs, by which recurrent layers are cut where that is "
        "quicker; parallel.plan() says why each is whole");
  }
  if (remedies.empty()) remedies.push_back("parallel.plan() says why each is whole");
  return joined(remedies, "; ");
}

}  // namespace

std::string little_cut(const std::vector<PlanEntry>& entries, const std::vector<LayerPlan>& layers,
                       int ranks, bool example, bool cut_own_parameters) {
  int64_t total = 0, cut = 0;
  std::map<std::string, int64_t> whole_by_class;
  for (const PlanEntry& entry : entries) {
    if (!entry.tied_to.empty()) continue;
    total += entry.global_bytes;
    if (entry.local_shape == entry.global_shape) {
      whole_by_class[entry.module_before] += entry.global_bytes;
    } else {
      cut += entry.global_bytes;
    }
  }
  const double part = total == 0 ? 1 : static_cast<double>(cut) / static_cast<double>(total);
  if (part >= kLittle) return "";
  return c10::str("oslo: initialize cut ", static_cast<int>(100 * part), " % of the parameters' ",
                  byte_text(total), " over ", ranks,
                  " tensor ranks; whole on every rank: ", holders(whole_by_class),
                  ". What may help: ", remedies(layers, example, cut_own_parameters));
}

}  // namespace oslo
