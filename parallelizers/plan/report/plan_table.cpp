#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>
#include <ostream>
#include <sstream>

#include "mpu/base/bytes.h"
#include "parallelizers/plan/layers/role.h"
#include "parallelizers/plan/report/fold.h"
#include "parallelizers/plan/report/pipeline_table.h"
#include "parallelizers/plan/report/plan_report.h"
#include "parallelizers/plan/report/text_table.h"

namespace oslo {
namespace {

using Row = TableRow;

/// Where sentences are broken.
constexpr size_t kWidth = 96;
/// Groups of an axis that a summary names.
constexpr size_t kMostGroups = 4;
constexpr size_t kMostRanks = 8;

std::string class_text(const PlanEntry& entry) {
  const auto own = [](const std::string& name) {
    const size_t colons = name.rfind("::");
    return colons == std::string::npos ? name : name.substr(colons + 2);
  };
  const std::string before = own(entry.module_before), after = own(entry.module_after);
  return before == after ? before : before + " -> " + after;
}

/// `text` in lines of at most kWidth, each begun by `indent`.
std::string wrapped_text(const std::string& text, const std::string& indent) {
  std::istringstream words(text);
  std::string result, line = indent, word;
  while (words >> word) {
    const bool first = line.size() == indent.size();
    if (!first && line.size() + 1 + word.size() > kWidth) {
      result += line + "\n";
      line = indent + word;
    } else {
      line += (first ? "" : " ") + word;
    }
  }
  return result + line + "\n";
}

/// {0, 1, 2, 3} as "0-3", {0, 4, 8} as "0 4 8".
std::string members_text(const std::vector<int>& ranks) {
  const bool neighbours =
      ranks.size() > 2 && ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
  if (neighbours) return c10::str(ranks.front(), "-", ranks.back());
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMostRanks); ++i) {
    text += (i == 0 ? "" : " ") + std::to_string(ranks[i]);
  }
  return ranks.size() > kMostRanks ? text + " ..." : text;
}

void print_axes(std::ostream& out, const Plan& plan) {
  std::string grid;
  for (const PlanAxis& axis : plan.axes) {
    grid += c10::str(grid.empty() ? ": " : " x ", axis.name, " ", axis.groups.front().size());
  }
  out << "  " << plan.ranks << (plan.ranks == 1 ? " rank" : " ranks") << grid << "\n";
  for (const PlanAxis& axis : plan.axes) {
    out << "    " << axis.name << (axis.groups.size() == 1 ? " group: " : " groups: ");
    for (size_t i = 0; i < std::min(axis.groups.size(), kMostGroups); ++i) {
      out << (i == 0 ? "" : ", ") << members_text(axis.groups[i]);
    }
    if (axis.groups.size() > kMostGroups) out << ", ... (" << axis.groups.size() << ")";
    out << "\n";
  }
}

/// The grid of ranks, what a step is expected to take, and the memory of a rank.
void print_summary(std::ostream& out, const Plan& plan) {
  print_axes(out, plan);
  print_pipeline(out, plan);
  int64_t gradients = 0;
  for (const PlanEntry& entry : plan.entries) {
    if (entry.tied_to.empty() && entry.trains) gradients += entry.local_bytes;
  }
  const PlanForecast& forecast = plan.forecast;
  if (forecast.step > 0) {
    std::string step =
        c10::str("expected step: ", time_text(forecast.step), " forward and backward, ",
                 time_text(forecast.collectives), " of it in collectives");
    if (forecast.one_device > 0) step += "; on one device " + time_text(forecast.one_device);
    out << wrapped_text(step, "  ");
    out << wrapped_text("rates: " + forecast.rates, "    ");
  }
  if (!plan.precision.empty()) out << wrapped_text("precision: " + plan.precision, "  ");
  std::string memory = c10::str("memory a rank: ", byte_text(plan.local_bytes()), " parameters, ",
                                byte_text(gradients), " gradients");
  if (forecast.step > 0) {
    memory += ", at most " + byte_text(forecast.kept_bytes) + " kept for backward";
  }
  if (forecast.memory_limit > 0) memory += "; the limit is " + byte_text(forecast.memory_limit);
  out << wrapped_text(memory, "  ") << "\n";
}

/// How a stage fits. `moved`: activations are moved to the host, and nothing is computed again.
std::string fits_text(const StageMemory& stage, bool moved) {
  if (stage.within == 0) {
    return "does not fit: a rank holds " + byte_text(stage.least) + " at the least";
  }
  if (moved) {
    return "fits in " + byte_text(stage.within) + ", with " +
           byte_text(stage.kept - stage.kept_least) + " moved to the host";
  }
  if (stage.again == 0) return "fits, with nothing computed again";
  return c10::str("fits in ", byte_text(stage.within), ", with ", stage.again, " of ",
                  stage.segments, " segments computed again");
}

/// What `oslo plan --memory` asks.
void print_memory(std::ostream& out, const PlanMemory& memory, bool moved) {
  out << "  memory of a rank in a step, by shapes, and a budget of " << byte_text(memory.budget)
      << ":\n";
  std::vector<Row> rows = {{"", "parameters", "gradients", "optimizer", "kept", "peak", "when"}};
  for (size_t i = 0; i < memory.stages.size(); ++i) {
    const StageMemory& stage = memory.stages[i];
    const std::string name = memory.stages.size() > 1 ? c10::str("stage ", i, ", ") : "";
    rows.push_back({name + "all kept", byte_text(stage.parameters), byte_text(stage.gradients),
                    byte_text(stage.states), byte_text(stage.kept), byte_text(stage.peak),
                    stage.at});
    rows.push_back({name + (moved ? "moved to the host" : "all again"), "", "", "",
                    byte_text(stage.kept_least), byte_text(stage.least), stage.least_at});
  }
  print_table(out, rows);
  for (size_t i = 0; i < memory.stages.size(); ++i) {
    const StageMemory& stage = memory.stages[i];
    out << "  " << (memory.stages.size() > 1 ? c10::str("stage ", i, ": ") : "");
    out << fits_text(stage, moved) << "\n";
  }
}

/// "1", or "0, 3" of copies.
std::string stages_text(const PlanEntry& entry) {
  std::string text;
  for (const int stage : entry.stages) {
    text += (text.empty() ? "" : ", ") + std::to_string(stage);
  }
  return text;
}

/// One line for each kind of parameter, and beneath those of a layer why it is cut as it is.
void print_parameters(std::ostream& out, const std::vector<PlanEntry>& entries) {
  const std::vector<FoldedEntry> lines = fold(entries);
  const bool staged = std::any_of(entries.begin(), entries.end(),
                                  [](const PlanEntry& entry) { return !entry.stages.empty(); });
  std::vector<std::vector<std::string>> rows{{"parameter", "cut", "global", "local", "bytes"}};
  if (staged) rows.front().insert(rows.front().begin() + 1, "stage");
  for (const FoldedEntry& line : lines) {
    const PlanEntry& entry = *line.entries.front();
    const size_t count = line.entries.size();
    rows.push_back({count == 1 ? line.name : c10::str(line.name, " x ", count), entry.placement,
                    c10::str(c10::IntArrayRef(entry.global_shape)),
                    c10::str(c10::IntArrayRef(entry.local_shape)),
                    std::to_string(entry.local_bytes)});
    if (staged) rows.back().insert(rows.back().begin() + 1, stages_text(entry));
    if (!entry.tied_to.empty()) rows.back().push_back(line.why);
  }
  std::ostringstream table;
  print_table(table, rows);
  std::istringstream text(table.str());
  std::string row;
  std::getline(text, row);
  out << row << "\n";
  const auto reason = [](const FoldedEntry& line) {
    const PlanEntry& entry = *line.entries.front();
    const bool said = line.why.empty() || !entry.tied_to.empty();
    return class_text(entry) + (said ? "" : "; " + line.why);
  };
  const auto module = [](const FoldedEntry& line) {
    return line.name.substr(0, line.name.rfind('.'));
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    std::getline(text, row);
    out << row << "\n";
    // What is said of a weight holds for the bias below it.
    const bool same = i + 1 < lines.size() && module(lines[i]) == module(lines[i + 1]) &&
                      reason(lines[i]) == reason(lines[i + 1]);
    if (!same) out << wrapped_text(reason(lines[i]), "      ");
  }
}

}  // namespace

std::string Plan::to_string() const {
  std::ostringstream out;
  std::vector<Row> rows;
  print_summary(out, *this);
  print_parameters(out, entries);
  out << "  parameters on this rank: " << local_bytes() << " bytes";
  int64_t unused = 0;
  for (const PlanEntry& entry : entries) unused += entry.unused_bytes;
  if (unused > 0) out << ", and " << unused << " of registered tensors that nothing uses";
  out << "\n";
  if (!recomputed.empty()) {
    out << "  computed again in backward: " << recomputed.size() << " segments\n";
    for (const PlanSegment& each : recomputed) {
      if (!each.not_cut.empty()) out << "    but " << each.layers << ": " << each.not_cut << "\n";
      if (each.kept)
        out << "    but " << each.layers << ": the budget of memory allows to keep it\n";
    }
  }
  if (!offload.empty()) out << "  saved for backward: " << offload << "\n";
  if (!memory.stages.empty()) {
    print_memory(out, memory, !offload.empty());
  } else if (memory.budget > 0) {
    out << "  budget of memory: " << byte_text(memory.budget);
    if (memory.peak > 0) {
      out << "; a rank holds " << byte_text(memory.peak) << " at the most, in " << memory.at;
    } else {
      out << "; what a rank holds is measured in the first step";
    }
    out << "\n";
  }
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

}  // namespace oslo
