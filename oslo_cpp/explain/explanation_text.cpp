#include <c10/util/StringUtil.h>

#include <algorithm>
#include <ostream>
#include <sstream>

#include "mpu/base/bytes.h"
#include "oslo_cpp/explain/explanation.h"
#include "oslo_cpp/explain/sections.h"
#include "parallelizers/plan/report/text_table.h"

namespace oslo {
namespace {

/// What stands behind a result's shape: nothing of a gradient that lies as its value does.
std::string placement_text(const ExplainedValue& value) {
  const std::string lies = value.placement(), gradient = value.gradient_placement();
  return gradient == lies ? lies : c10::str(lies, " (gradient: ", gradient, ")");
}

std::string move_text(const ExplainedRepeat& repeat, const std::string& operation) {
  const ExplainedMove& move = repeat.move;
  const std::string times = repeat.times == 1 ? "" : c10::str(repeat.times, " times ");
  // An overload, "aten::softmax.int", says nothing new.
  const std::string rule = move.rule.substr(0, move.rule.find('.'));
  const std::string asked = rule == operation ? "" : " (" + short_name(move.rule) + ")";
  return c10::str(move.backward ? "backward" : "forward", ": ", times, move.collective, " over ",
                  move.group, ", ", byte_text(move.bytes), ": ", move.why, asked);
}

/// A row for each result that differs from the one before.
void add_rows(std::vector<TableRow>& rows, const ExplainedCall& call, const std::string& where) {
  const size_t first = rows.size();
  for (const auto& [value, times] : alike_of(call.results)) {
    rows.push_back({"", "", shape_text(value.shape, times), placement_text(value)});
  }
  if (rows.size() == first) rows.push_back({"", ""});
  rows[first][0] = where;
  rows[first][1] = short_name(call.operation);
}

void print_section(std::ostream& out, const ExplainedSection& section) {
  const bool one_module = std::ranges::all_of(
      section.calls, [&](const ExplainedCall& call) { return call.module == section.title; });
  if (!one_module) out << "\n  " << section.title;
  out << "\n";
  std::vector<TableRow> rows;
  std::vector<std::string> below;  // of each row
  std::string module;
  for (const ExplainedCall& call : section.calls) {
    add_rows(rows, call, call.module == module ? "" : call.module);
    module = call.module;
    below.resize(rows.size());
    for (const ExplainedRepeat& repeat : repeats_of(call.moves)) {
      below.back() += "        " + move_text(repeat, call.operation) + "\n";
    }
  }
  std::ostringstream table;
  print_table(table, rows, 2);
  std::istringstream lines(table.str());
  size_t row = 0;
  for (std::string line; std::getline(lines, line); ++row) out << line << "\n" << below[row];
}

}  // namespace

std::string Explanation::to_string() const {
  std::ostringstream out;
  out << "  of " << of << ", as rank " << rank << " sees it\n"
      << "  shapes are global; a gradient lies as its value does where nothing else is said\n";
  if (!note.empty()) out << "  " << note << "\n";
  for (const ExplainedSection& section : sections_of(*this)) print_section(out, section);
  if (!outside.empty()) {
    out << "\n  outside of the model's operators\n";
    for (const ExplainedRepeat& repeat : repeats_of(outside)) {
      out << "    " << move_text(repeat, "") << "\n";
    }
  }
  out << "\n  in all\n";
  std::vector<TableRow> rows;
  for (const ExplainedTotal& total : totals_of(*this)) {
    rows.push_back({total.group, total.backward ? "backward" : "forward", total.collective,
                    c10::str(total.traffic.calls, total.traffic.calls == 1 ? " call" : " calls"),
                    byte_text(total.traffic.bytes)});
  }
  if (rows.empty()) rows.push_back({"nothing moves"});
  print_table(out, rows, 2);
  return out.str();
}

}  // namespace oslo
