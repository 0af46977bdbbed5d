#include "parallelizers/pipeline/schedule/timeline/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>

#include "mpu/base/words/markup.h"
#include "parallelizers/pipeline/schedule/timeline/report.h"

namespace oslo::pipeline {
namespace {

using Doing = Timeline::Doing;

constexpr double kLeft = 60;   // of the rows: room for the ranks' names
constexpr double kRight = 60;  // behind the rows: each rank's bubble
constexpr double kWidth = 1000;
constexpr double kRow = 24;
constexpr double kTitle = 30;
constexpr double kFoot = 14;  // below the last row
constexpr double kLegend = 24;

constexpr const char* kStyle =
    "<style>rect{stroke:#ffffff;stroke-width:.5}.middle{text-anchor:middle}"
    ".end{text-anchor:end}</style>\n";

struct Colour {
  const char* name;
  int red, green, blue;
};

// By Pass.
constexpr std::array<Colour, 4> kPassColours = {{{"forward", 122, 169, 221},
                                                 {"backward", 124, 190, 143},
                                                 {"backward, input", 150, 208, 190},
                                                 {"backward, weight", 226, 190, 108}}};
constexpr const char* kWaitFill = "#f3f3f3";
constexpr const char* kMessageFill = "#d8c6e4";
constexpr const char* kReduceFill = "#b48ccc";

std::string coordinate(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", std::round(value * 100) / 100);
  return text;
}

std::string colour_of(Pass pass, int chunk) {
  const Colour& colour = kPassColours[static_cast<size_t>(pass)];
  // A rank's later stages are lighter, up to a point.
  const double light = std::min(chunk * 0.45, 0.75);
  const auto mix = [&](int part) { return static_cast<int>(part + (255 - part) * light); };
  char text[16];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", mix(colour.red), mix(colour.green),
                mix(colour.blue));
  return text;
}

std::string box(double x, double y, double width, double height, const std::string& fill,
                const std::string& tip) {
  return "<rect x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) + "\" width=\"" +
         coordinate(width) + "\" height=\"" + coordinate(height) + "\" fill=\"" + fill +
         "\" stroke=\"#ffffff\" stroke-width=\"0.5\">" +
         (tip.empty() ? "" : "<title>" + tip + "</title>") + "</rect>\n";
}

std::string words(double x, double y, const std::string& anchor, const std::string& content) {
  return "<text x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) + "\" text-anchor=\"" + anchor +
         "\">" + escaped_markup(content) + "</text>\n";
}

class Panel {
 public:
  Panel(const SvgPanel& panel, double top, double scale)
      : timeline_(panel.timeline), top_(top + kTitle), scale_(scale) {
    text_ = words(kLeft, top + kTitle - 9, "start", panel.title);
  }

  std::string draw() {
    const std::vector<RankUse> uses = use_of(timeline_);
    for (size_t rank = 0; rank < timeline_.ranks.size(); ++rank) {
      const double y = top_ + kRow * static_cast<double>(rank);
      text_ += words(kLeft - 8, y + kRow - 8, "end", "rank " + std::to_string(rank));
      text_ += words(kWidth - kRight + 6, y + kRow - 8, "start", percent(uses[rank].bubble()));
      // What interrupts an action is drawn over it.
      draw_row(rank, y, true);
      draw_row(rank, y, false);
    }
    return text_;
  }

  static double height(const SvgPanel& panel) {
    return kTitle + kRow * static_cast<double>(panel.timeline.ranks.size()) + kFoot;
  }

 private:
  void draw_row(size_t rank, double y, bool computing) {
    std::set<int> stages;
    for (const Timeline::Event& event : timeline_.ranks[rank]) stages.insert(event.action.stage);
    for (const Timeline::Event& event : timeline_.ranks[rank]) {
      if ((event.doing == Doing::compute) != computing) continue;
      const double x = x_of(event.begin);
      const double width = (event.end - event.begin) * scale_;
      const std::string label = to_text(event.action);
      if (computing) {
        const auto chunk = std::distance(stages.begin(), stages.find(event.action.stage));
        draw_action(event, rank, y, colour_of(event.action.pass, static_cast<int>(chunk)));
      } else if (event.doing == Doing::wait) {
        text_ += box(x, y + 5, width, kRow - 10, kWaitFill, "waits for what " + label + " needs");
      } else if (event.doing == Doing::reduce) {
        text_ += box(x, y + 5, width, kRow - 10, kReduceFill, "averages or adds up gradients");
      } else {
        const bool sends = event.doing == Doing::send;
        text_ += box(x, sends ? y + kRow - 4 : y + 5, width, sends ? 3 : kRow - 10, kMessageFill,
                     (sends ? "sends for " : "receives for ") + label);
      }
    }
  }

  /// A box for each stretch in which it computed, its micro-batch in the longest.
  void draw_action(const Timeline::Event& event, size_t rank, double y, const std::string& fill) {
    Stretch longest;
    for (const Stretch& stretch : computing_of(event, timeline_.ranks[rank])) {
      const double length = stretch.end - stretch.begin;
      text_ +=
          box(x_of(stretch.begin), y + 2, length * scale_, kRow - 4, fill, to_text(event.action));
      if (length > longest.end - longest.begin) longest = stretch;
    }
    const std::string inside = std::to_string(event.action.micro_batch);
    if ((longest.end - longest.begin) * scale_ <= 7.0 * static_cast<double>(inside.size()) + 1) {
      return;
    }
    text_ += words(x_of((longest.begin + longest.end) / 2), y + kRow - 8, "middle", inside);
  }

  double x_of(double time) const { return kLeft + (time - timeline_.begin()) * scale_; }

  const Timeline& timeline_;
  double top_, scale_;
  std::string text_;
};

std::string legend(const std::vector<SvgPanel>& panels, double top) {
  std::set<Pass> passes;
  bool waits = false;
  bool messages = false;
  bool reduces = false;
  bool shades = false;
  for (const SvgPanel& panel : panels) {
    for (const auto& events : panel.timeline.ranks) {
      shades |= std::any_of(events.begin(), events.end(), [&](const Timeline::Event& event) {
        return event.action.stage != events.front().action.stage;
      });
      for (const Timeline::Event& event : events) {
        if (event.doing == Doing::compute) passes.insert(event.action.pass);
        waits |= event.doing == Doing::wait;
        reduces |= event.doing == Doing::reduce;
        messages |= event.doing == Doing::send || event.doing == Doing::receive;
      }
    }
  }
  std::vector<std::pair<std::string, std::string>> entries;
  for (const Pass pass : passes) {
    entries.emplace_back(colour_of(pass, 0), kPassColours[static_cast<size_t>(pass)].name);
  }
  if (waits) entries.emplace_back(kWaitFill, "waiting");
  if (messages) entries.emplace_back(kMessageFill, "a message under way");
  if (reduces) entries.emplace_back(kReduceFill, "gradients averaged, added up");
  std::string text;
  double x = kLeft;
  for (const auto& [fill, name] : entries) {
    text += box(x, top + 6, 14, 12, fill, "");
    text += words(x + 19, top + 16, "start", name);
    x += 40 + 6.6 * static_cast<double>(name.size());
  }
  if (shades) text += words(x, top + 16, "start", "lighter: a rank's later stage");
  return text + words(kWidth - kRight + 6, top + 16, "start", "bubble");
}

}  // namespace

std::string to_svg(const std::vector<SvgPanel>& panels) {
  std::string body;
  double height = 4;
  double span = 0;
  for (const SvgPanel& panel : panels) span = std::max(span, panel.timeline.span());
  const double scale = span > 0 ? (kWidth - kLeft - kRight) / span : 0;
  for (const SvgPanel& panel : panels) {
    body += Panel(panel, height, scale).draw();
    height += Panel::height(panel);
  }
  body += legend(panels, height);
  height += kLegend;
  const std::string size = coordinate(kWidth) + "\" height=\"" + coordinate(height);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + size + "\" viewBox=\"0 0 " +
         coordinate(kWidth) + " " + coordinate(height) +
         "\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n<rect width=\"" + size +
         "\" fill=\"#ffffff\"/>\n" + kStyle + body + "</svg>\n";
}

}  // namespace oslo::pipeline
