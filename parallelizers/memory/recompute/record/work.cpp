#include "parallelizers/memory/recompute/record/work.h"

#include "parallelizers/memory/recompute/record/segment_bytes.h"

namespace oslo::recompute {

double work_of(const Segment& segment) {
  constexpr double kOperationsPerByte = 16;
  double work = 0;
  for (size_t i = 0; i < segment.operators.size(); ++i) {
    if (!segment.needed[i]) continue;
    const OperatorRecord& record = segment.operators[i];
    work += record.flops / kOperationsPerByte;
    if (record.op->view) continue;
    for (const MetTensor& result : record.results) {
      if (result.defined) work += bytes_of(result);
    }
  }
  return work;
}

}  // namespace oslo::recompute
