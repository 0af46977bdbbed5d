#pragma once

#include <string>

#include "parallelizers/pipeline/schedule/order/playback.h"

namespace oslo::tool {

/// Reads "F=1,I=1.3,W=0.7,hop=0.25"; what is left out is 1, a hop 0. A cost may be a list of one
/// number for each stage: "F=1/1/1/2". Throws `oslo::Error` naming the part that is none.
pipeline::Costs parse_costs(const std::string& text, int stages);

}  // namespace oslo::tool
