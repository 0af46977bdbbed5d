#include "parallelizers/stages/stage_rule.h"

#include <algorithm>

namespace oslo {

std::vector<int> automatic_stages(int layers, int stages) {
  // Layers that only count: the head's work, which the last stage has.
  const bool leaves_room = stages >= 4 && layers >= 8 && layers % stages == 0;
  const int counted = leaves_room ? layers + std::min(stages - 1, layers / stages) : layers;
  const int each = counted / stages, more = counted % stages;
  std::vector<int> ids;
  for (int stage = 0; stage < stages; ++stage) {
    const int here = each + (stage >= stages - more ? 1 : 0);
    ids.insert(ids.end(), here, stage);
  }
  ids.resize(layers);
  return ids;
}

}  // namespace oslo
