#include "parallelizers/plan/plan.h"

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "mpu/error.h"

namespace oslo {
namespace {

using Row = std::vector<std::string>;

/// Left-aligned columns, as wide as their widest cell.
void print_table(std::ostream& out, const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      line += " " + row[i] + std::string(widths[i] - row[i].size() + 1, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << "\n";
  }
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return c10::str(c10::IntArrayRef(shape));
}

std::string short_class(const std::string& name) {
  const size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

}  // namespace

int64_t Plan::local_bytes() const {
  int64_t bytes = 0;
  for (const PlanEntry& entry : entries) {
    if (entry.tied_to.empty()) bytes += entry.local_bytes;
  }
  return bytes;
}

std::string Plan::to_string() const {
  std::ostringstream out;
  std::vector<Row> rows{{"parameter", "module", "placement", "global", "local", "bytes", "why"}};
  for (const PlanEntry& entry : entries) {
    const std::string before = short_class(entry.module_before);
    const std::string after = short_class(entry.module_after);
    rows.push_back({entry.parameter, before == after ? before : before + " -> " + after,
                    entry.placement, shape_text(entry.global_shape), shape_text(entry.local_shape),
                    std::to_string(entry.local_bytes),
                    entry.tied_to.empty() ? entry.why : "tied to " + entry.tied_to});
  }
  print_table(out, rows);
  out << "  parameters on this rank: " << local_bytes() << " bytes";
  int64_t unused = 0;
  for (const PlanEntry& entry : entries) unused += entry.unused_bytes;
  if (unused > 0) out << ", and " << unused << " of registered tensors that nothing uses";
  out << "\n";
  if (gathers.empty()) {
    out << "  no gathers " << counted << "\n";
  } else {
    out << "  gathers " << counted << ":\n";
    rows = {{"operator", "calls", "bytes", "why"}};
    for (const GatherEntry& entry : gathers) {
      rows.push_back({entry.operation, std::to_string(entry.calls), std::to_string(entry.bytes),
                      entry.reason});
    }
    print_table(out, rows);
  }
  if (traffic.empty()) {
    out << "  no collectives " << counted << "\n";
    return out.str();
  }
  out << "  collectives " << counted << " (received by this rank):\n";
  // What the transport moved stands beside the ring's formula wherever something moved.
  Traffic total;
  int64_t moved = 0;
  for (const PlanTraffic& line : traffic) moved += line.entry.moved;
  const auto with_moved = [&](Row row, const std::string& bytes) {
    if (moved > 0) row.push_back(bytes);
    return row;
  };
  rows = {with_moved({"group", "collective", "rule", "calls", "bytes"}, "moved")};
  for (const PlanTraffic& line : traffic) {
    rows.push_back(with_moved(
        {line.group, line.entry.operation, line.entry.rule,
         std::to_string(line.entry.traffic.calls), std::to_string(line.entry.traffic.bytes)},
        std::to_string(line.entry.moved)));
    total += line.entry.traffic;
  }
  rows.push_back(
      with_moved({"all", "", "", std::to_string(total.calls), std::to_string(total.bytes)},
                 std::to_string(moved)));
  print_table(out, rows);
  return out.str();
}

nlohmann::json Plan::to_json() const {
  nlohmann::json json;
  json["parameters"] = nlohmann::json::array();
  for (const PlanEntry& entry : entries) {
    nlohmann::json line = {
        {"parameter", entry.parameter},         {"module", entry.module},
        {"module_before", entry.module_before}, {"module_after", entry.module_after},
        {"placement", entry.placement},         {"why", entry.why},
        {"global_shape", entry.global_shape},   {"local_shape", entry.local_shape},
        {"local_bytes", entry.local_bytes},     {"stage", entry.stage}};
    if (!entry.tied_to.empty()) line["tied_to"] = entry.tied_to;
    if (entry.unused_bytes > 0) line["unused_bytes"] = entry.unused_bytes;
    json["parameters"].push_back(std::move(line));
  }
  json["counted"] = counted;
  json["gathers"] = nlohmann::json::array();
  for (const GatherEntry& entry : gathers) {
    json["gathers"].push_back({{"operator", entry.operation},
                               {"reason", entry.reason},
                               {"calls", entry.calls},
                               {"bytes", entry.bytes}});
  }
  json["collectives"] = nlohmann::json::array();
  for (const PlanTraffic& line : traffic) {
    json["collectives"].push_back({{"group", line.group},
                                   {"collective", line.entry.operation},
                                   {"rule", line.entry.rule},
                                   {"calls", line.entry.traffic.calls},
                                   {"elements", line.entry.traffic.elements},
                                   {"bytes", line.entry.traffic.bytes},
                                   {"moved_bytes", line.entry.moved}});
  }
  return json;
}

}  // namespace oslo
