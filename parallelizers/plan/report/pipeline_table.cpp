#include "parallelizers/plan/report/pipeline_table.h"

#include <c10/util/StringUtil.h>

#include <cmath>
#include <vector>

#include "mpu/base/bytes.h"
#include "parallelizers/plan/layers/role.h"
#include "parallelizers/plan/report/text_table.h"

namespace oslo {
namespace {

/// "h.0 to h.5", "h.0, h.3 to h.4", "none".
std::string layers_text(const std::vector<PlanLayer>& layers, int stage) {
  std::string text;
  for (size_t first = 0; first < layers.size();) {
    if (layers[first].actual_stage != stage) {
      ++first;
      continue;
    }
    size_t last = first;
    while (last + 1 < layers.size() && layers[last + 1].actual_stage == stage) ++last;
    text += (text.empty() ? "" : ", ") + layers[first].path;
    if (last > first) text += " to " + layers[last].path;
    first = last + 1;
  }
  return text.empty() ? "none" : text;
}

}  // namespace

void print_pipeline(std::ostream& out, const Plan& plan) {
  const PlanPipeline& pipeline = plan.pipeline;
  if (pipeline.why.empty()) return;
  out << "  pipeline of " << pipeline.stages << " stages, " << pipeline.why << "\n";
  const bool timed = !pipeline.seconds.empty();
  std::vector<TableRow> rows{{"stage", "layers", "parameters"}};
  if (timed) rows.front().emplace_back("share of time");
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    rows.push_back({std::to_string(stage), layers_text(pipeline.layers, stage),
                    byte_text(plan.stage_bytes(stage))});
    if (timed) rows.back().push_back(c10::str(std::lround(100 * pipeline.share(stage)), "%"));
  }
  print_table(out, rows, /*indent=*/2);
}

}  // namespace oslo
