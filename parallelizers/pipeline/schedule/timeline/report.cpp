#include "parallelizers/pipeline/schedule/timeline/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "parallelizers/pipeline/schedule/timeline/simulate.h"

namespace oslo::pipeline {
namespace {

using Doing = Timeline::Doing;

std::string label_of(const Action& action, bool leave_stage_out) {
  const std::string text = to_text(action);
  return leave_stage_out ? text.substr(text.find_first_not_of("0123456789")) : text;
}

using Rows = std::vector<std::vector<std::string>>;

void fill(std::string& row, int begin, int end, char with) {
  if (static_cast<int>(row.size()) < end) row.resize(end, ' ');
  // The last column stays free: actions stand apart.
  for (int column = begin; column + 1 < end; ++column) row[column] = with;
}

}  // namespace

std::string grid(const Timeline& timeline, bool leave_stage_out, int most_columns) {
  // As narrow as the tightest action allows.
  double columns_a_unit = 0;
  for (const auto& events : timeline.ranks) {
    for (const Timeline::Event& event : events) {
      const double length = event.end - event.begin;
      if (event.doing != Doing::compute || length <= 0) continue;
      const size_t width = label_of(event.action, leave_stage_out).size() + 1;
      columns_a_unit = std::max(columns_a_unit, static_cast<double>(width) / length);
    }
  }
  if (timeline.span() * columns_a_unit > most_columns) return "";
  const auto column_of = [&](double time) {
    return static_cast<int>(std::floor((time - timeline.begin()) * columns_a_unit + 1e-6));
  };
  std::string text;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::string row;
    for (const Timeline::Event& event : timeline.ranks[rank]) {
      const int begin = column_of(event.begin);
      const int end = column_of(event.end);
      if (event.doing == Doing::send) continue;
      fill(row, begin, end, event.doing == Doing::compute ? '=' : '.');
      if (event.doing != Doing::compute || end == begin) continue;
      const std::string label = label_of(event.action, leave_stage_out);
      row.replace(begin, std::min<size_t>(label.size(), end - begin), label);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += "rank " + std::to_string(rank) + "  " + row + "\n";
  }
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", std::abs(value) < 1e-9 ? 0 : value);
  return text;
}

std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += std::string(widths[i] - row[i].size() + (i > 0 ? 2 : 0), ' ') + row[i];
    }
    text += "\n";
  }
  return text;
}

std::string rank_table(const Schedule& schedule, const Timeline& timeline) {
  const std::vector<RankUse> uses = use_of(timeline);
  const std::vector<Peak> peaks = peaks_of(schedule);
  Rows rows = {{"rank", "stages", "busy", "waiting", "communicating", "idle", "bubble", "kept to I",
                "kept to W"}};
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::string stages;
    for (const int stage : schedule.stages_of(rank)) {
      stages += (stages.empty() ? "" : " ") + std::to_string(stage);
    }
    const RankUse& use = uses[rank];
    rows.push_back({std::to_string(rank), stages, number_text(use.busy), number_text(use.waiting),
                    number_text(use.communicating), number_text(use.idle), percent(use.bubble()),
                    std::to_string(peaks[rank].until_input),
                    std::to_string(peaks[rank].until_weight)});
  }
  return aligned(rows);
}

std::string title_of(const Schedule& schedule) {
  const auto count = [](int number, const std::string& one, const std::string& many) {
    return std::to_string(number) + " " + (number == 1 ? one : many);
  };
  return schedule.kind + ": " + count(schedule.ranks, "rank", "ranks") + ", " +
         count(schedule.micro_batches, "micro-batch", "micro-batches") + ", " +
         count(schedule.chunks, "stage", "stages") + " a rank";
}

std::string measured_report(const Timeline& measured, const Timeline& simulated,
                            const std::string& formula) {
  const std::vector<RankUse> uses = use_of(measured);
  const std::vector<RankUse> expected = use_of(simulated);
  Rows rows = {{"rank", "busy", "waiting", "communicating", "idle", "bubble", "simulated"}};
  for (size_t rank = 0; rank < uses.size(); ++rank) {
    const RankUse& use = uses[rank];
    const double span = use.span() > 0 ? use.span() : 1;
    rows.push_back({std::to_string(rank), percent(use.busy / span), percent(use.waiting / span),
                    percent(use.communicating / span), percent(use.idle / span),
                    percent(use.bubble()), percent(expected[rank].bubble())});
  }
  return "step      " + number_text(measured.span()) + " ms; simulated " +
         number_text(simulated.span()) + " ms\nbubble    " + percent(bubble_of(measured)) +
         "; simulated " + percent(bubble_of(simulated)) + "\nformula   " +
         (formula.empty() ? "none in closed form for these lists and costs"
                          : formula + ", if stages cost the same") +
         "\n\n" + aligned(rows);
}

}  // namespace oslo::pipeline
