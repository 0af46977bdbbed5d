#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace oslo {

/// A line of a picture: values over steps.
struct Curve {
  std::string name;
  std::vector<std::pair<int64_t, double>> points;
};

/// The curves as an SVG picture, over one axis of steps. Values that are not finite are left out.
std::string curve_picture(const std::vector<Curve>& curves);

}  // namespace oslo
