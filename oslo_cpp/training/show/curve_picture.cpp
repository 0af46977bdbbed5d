#include "oslo_cpp/training/show/curve_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include "mpu/base/words/markup.h"

namespace oslo {
namespace {

constexpr double kWidth = 640, kHeight = 360, kLeft = 64, kRight = 16, kTop = 28, kBottom = 36;
constexpr int kTicks = 5;
constexpr std::array kColours = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd"};

/// What an axis shows: from the smallest to the largest value.
struct Range {
  double from = std::numeric_limits<double>::infinity();
  double to = -std::numeric_limits<double>::infinity();

  void add(double value) {
    from = std::min(from, value);
    to = std::max(to, value);
  }
  /// From 0 to 1; of nothing, or of one value, in the middle.
  double place(double value) const { return to > from ? (value - from) / (to - from) : 0.5; }
  double tick(int number) const { return from + (to - from) * number / (kTicks - 1); }
};

double across(const Range& steps, double step) {
  return kLeft + steps.place(step) * (kWidth - kLeft - kRight);
}

double down(const Range& values, double value) {
  return kHeight - kBottom - values.place(value) * (kHeight - kTop - kBottom);
}

void draw_axes(std::ostream& svg, const Range& steps, const Range& values) {
  for (int number = 0; number < kTicks && values.to >= values.from; ++number) {
    const double y = down(values, values.tick(number)), x = across(steps, steps.tick(number));
    svg << "<line x1='" << kLeft << "' x2='" << kWidth - kRight << "' y1='" << y << "' y2='" << y
        << "' stroke='#ddd'/>\n<text x='" << kLeft - 6 << "' y='" << y + 4 << "' text-anchor='end'>"
        << values.tick(number) << "</text>\n<text x='" << x << "' y='" << kHeight - kBottom + 18
        << "' text-anchor='middle'>" << std::llround(steps.tick(number)) << "</text>\n";
    if (values.to == values.from) break;
  }
}

}  // namespace

std::string curve_picture(const std::vector<Curve>& curves) {
  Range steps, values;
  for (const Curve& curve : curves) {
    for (const auto& [step, value] : curve.points) {
      if (!std::isfinite(value)) continue;
      steps.add(static_cast<double>(step));
      values.add(value);
    }
  }
  std::ostringstream svg;
  svg.precision(5);
  svg << "<svg xmlns='http://www.w3.org/2000/svg' width='" << kWidth << "' height='" << kHeight
      << "' font-family='sans-serif' font-size='11'>\n<rect width='100%' height='100%' "
         "fill='white'/>\n";
  draw_axes(svg, steps, values);
  for (size_t i = 0; i < curves.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    svg << "<polyline fill='none' stroke='" << colour << "' stroke-width='1.5' points='";
    for (const auto& [step, value] : curves[i].points) {
      if (!std::isfinite(value)) continue;
      svg << across(steps, static_cast<double>(step)) << "," << down(values, value) << " ";
    }
    svg << "'/>\n<text x='" << kLeft + 140 * static_cast<double>(i) << "' y='16' fill='" << colour
        << "'>" << escaped_markup(curves[i].name) << "</text>\n";
  }
  svg << "</svg>\n";
  return svg.str();
}

}  // namespace oslo
