#include <c10/util/StringUtil.h>

#include <sstream>
#include <string_view>

#include "mpu/base/bytes.h"
#include "mpu/base/words/markup.h"
#include "oslo_cpp/explain/explanation.h"
#include "oslo_cpp/explain/sections.h"

namespace oslo {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What lies where, and what moves</title>
<style>
  body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 100em; padding: 0 1em;
         color: #1c2430; background: #fff; }
  h1 { font-size: 1.5em; margin-bottom: .2em; }
  p { margin: .3em 0; color: #4a5564; }
  table { border-collapse: collapse; margin: .6em 0; }
  details table { width: 100%; table-layout: fixed; }
  th.operator { width: 17%; }
  th.shape { width: 11%; }
  th.lies { width: 16%; }
  th.gradient { width: 11%; }
  th, td { text-align: left; vertical-align: top; padding: .25em .7em .25em 0;
           border-bottom: 1px solid #e6e9ee; }
  th { font-weight: 600; color: #4a5564; white-space: nowrap; }
  td.operator, td.shape { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
  td.number { text-align: right; white-space: nowrap; }
  tr.module td { background: #f4f6f9; font-weight: 600; }
  .same { color: #8a94a3; }
  summary { cursor: pointer; font-size: 1.1em; font-weight: 600; padding: .4em 0; }
  summary .moved { font-weight: 400; color: #4a5564; font-size: .9em; margin-left: .8em; }
  .cut { background: #e3f0ff; border-radius: 3px; padding: 0 .3em; }
  .partial { background: #fff0d9; border-radius: 3px; padding: 0 .3em; }
  .move { display: block; }
  .move b { font-weight: 600; }
  .gathers b { color: #b3261e; }
  #quiet:checked ~ details tr.quiet { display: none; }
  @media (prefers-color-scheme: dark) {
    body { background: #14181e; color: #dde3ea; }
    p, th, summary .moved { color: #9aa6b5; }
    th, td { border-color: #2a313b; }
    tr.module td { background: #1d232c; }
    .cut { background: #17365c; }
    .partial { background: #59400f; }
    .gathers b { color: #ff8a80; }
  }
</style>
</head>
<body>
<h1>What lies where, and what moves</h1>
)";

std::string highlighted(const std::string& placement, bool cut, bool partial) {
  if (!cut && !partial) return escaped_markup(placement);
  return c10::str("<span class=\"", partial ? "partial" : "cut", "\">", escaped_markup(placement),
                  "</span>");
}

void write_move(std::ostream& out, const ExplainedRepeat& repeat) {
  const ExplainedMove& move = repeat.move;
  const bool gathers = move.why.starts_with("gathers");
  out << "<span class=\"move" << (gathers ? " gathers" : "") << "\"><b>"
      << (repeat.times == 1 ? "" : c10::str(repeat.times, " &times; "))
      << escaped_markup(move.collective) << "</b> over " << escaped_markup(move.group) << ", "
      << byte_text(move.bytes) << ": " << escaped_markup(move.why) << " ("
      << escaped_markup(move.rule) << ")</span>";
}

void write_moves(std::ostream& out, const std::vector<ExplainedMove>& moves, bool backward) {
  out << "<td>";
  for (const ExplainedRepeat& repeat : repeats_of(moves)) {
    if (repeat.move.backward == backward) write_move(out, repeat);
  }
  out << "</td>";
}

void write_call(std::ostream& out, const ExplainedCall& call) {
  out << "<tr" << (call.moves.empty() ? " class=\"quiet\"" : "") << "><td class=\"operator\">"
      << escaped_markup(short_name(call.operation)) << "</td>";
  const auto results = alike_of(call.results);
  const auto each = [&](const char* of_class, const auto& text) {
    out << "<td" << of_class << ">";
    for (size_t i = 0; i < results.size(); ++i) out << (i == 0 ? "" : "<br>") << text(results[i]);
    out << "</td>";
  };
  each(" class=\"shape\"",
       [](const ExplainedAlike& of) { return shape_text(of.value.shape, of.times); });
  each(" class=\"shape\"",
       [](const ExplainedAlike& of) { return shape_text(of.value.local_shape, of.times); });
  each("", [](const ExplainedAlike& of) {
    return highlighted(of.value.placement(), !of.value.cuts.empty(), !of.value.partial.empty());
  });
  each("", [](const ExplainedAlike& of) {
    const std::string gradient = of.value.gradient_placement();
    if (gradient == of.value.placement()) return std::string("<span class=\"same\">alike</span>");
    return escaped_markup(gradient);
  });
  write_moves(out, call.moves, /*backward=*/false);
  write_moves(out, call.moves, /*backward=*/true);
  out << "</tr>\n";
}

void write_section(std::ostream& out, const ExplainedSection& section) {
  const Traffic moved = section.moved();
  out << "<details open><summary>" << escaped_markup(section.title) << "<span class=\"moved\">";
  if (moved.calls == 0) {
    out << "nothing moves";
  } else {
    out << moved.calls << (moved.calls == 1 ? " collective, " : " collectives, ")
        << byte_text(moved.bytes) << (section.layers > 1 ? ", each layer" : "");
  }
  out << "</span></summary>\n<table>\n<tr><th class=\"operator\">operator</th>"
      << "<th class=\"shape\">result</th><th class=\"shape\">on this rank</th>"
      << "<th class=\"lies\">lies</th><th class=\"gradient\">its gradient lies</th>"
      << "<th>moves forward</th><th>moves backward</th></tr>\n";
  std::string module = section.title;
  for (const ExplainedCall& call : section.calls) {
    if (call.module != module) {
      out << "<tr class=\"module\"><td colspan=\"7\">" << escaped_markup(call.module)
          << "</td></tr>\n";
    }
    module = call.module;
    write_call(out, call);
  }
  out << "</table>\n</details>\n";
}

void write_totals(std::ostream& out, const Explanation& explanation) {
  out << "<table>\n<tr><th>over</th><th></th><th>collective</th><th>calls</th><th>bytes that this "
         "rank receives</th></tr>\n";
  for (const ExplainedTotal& total : totals_of(explanation)) {
    out << "<tr><td>" << escaped_markup(total.group) << "</td><td>"
        << (total.backward ? "backward" : "forward") << "</td><td>"
        << escaped_markup(total.collective) << "</td><td class=\"number\">" << total.traffic.calls
        << "</td><td class=\"number\">" << byte_text(total.traffic.bytes) << "</td></tr>\n";
  }
  out << "</table>\n";
}

}  // namespace

std::string Explanation::to_html() const {
  std::ostringstream out;
  out << kHead << "<p>Of " << escaped_markup(of) << ", as rank " << rank << " sees it.";
  if (!note.empty()) out << " " << escaped_markup(note) << ".";
  out << "</p>\n<p>Shapes are global. An operator without a parameter stands behind the one that "
         "used "
         "one last.</p>\n";
  write_totals(out, *this);
  out << "<input type=\"checkbox\" id=\"quiet\"><label for=\"quiet\"> only operators that move "
         "something</label>\n";
  for (const ExplainedSection& section : sections_of(*this)) write_section(out, section);
  if (!outside.empty()) {
    out << "<h2>Outside of the model's operators</h2>\n<p>";
    for (const ExplainedRepeat& repeat : repeats_of(outside)) write_move(out, repeat);
    out << "</p>\n";
  }
  out << "</body>\n</html>\n";
  return out.str();
}

}  // namespace oslo
