#pragma once

#include <string>
#include <vector>

#include "parallelizers/pipeline/schedule/timeline/timeline.h"

namespace oslo::pipeline {

/// One of the timelines of a picture.
struct SvgPanel {
  std::string title;
  Timeline timeline;
};

/// A picture: the panels one below the other, all to the same scale; a row for each rank, time to
/// the right. Passes differ by colour, a rank's stages by shade; numbers are micro-batches.
std::string to_svg(const std::vector<SvgPanel>& panels);

}  // namespace oslo::pipeline
