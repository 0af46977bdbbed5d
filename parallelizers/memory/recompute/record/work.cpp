#include "parallelizers/memory/recompute/record/work.h"

#include <functional>
#include <numeric>
#include <string_view>

namespace oslo::recompute {
namespace {

constexpr double kOperationsPerByte = 16;

double count(const MetTensor& tensor) {
  return std::accumulate(tensor.sizes.begin(), tensor.sizes.end(), 1.0, std::multiplies<>());
}

double last_size(const MetTensor& tensor) {
  return tensor.sizes.empty() ? 1 : static_cast<double>(tensor.sizes.back());
}

/// Floating-point operations; 0 of what is no product.
double operations(const OperatorRecord& record) {
  std::string_view name = record.op->name;
  if (!name.starts_with("aten::") || record.results.empty()) return 0;
  name = name.substr(6, name.find('.', 6) - 6);
  const auto& arguments = record.arguments;
  const MetTensor& result = record.results.front();
  if (name == "linear" || name == "matmul" || name == "mm" || name == "bmm" || name == "mv") {
    return 2 * count(arguments[0]) * last_size(result);
  }
  if (name == "addmm" || name == "baddbmm") return 2 * count(arguments[1]) * last_size(result);
  if (name == "convolution" || name == "_convolution" || name.starts_with("conv")) {
    const MetTensor& weight = arguments[1];
    return 2 * count(result) * count(weight) / static_cast<double>(weight.sizes[0]);
  }
  if (name.find("scaled_dot_product") != std::string_view::npos) {
    const auto& keys = arguments[1].sizes;
    return 4 * count(arguments[0]) * static_cast<double>(keys[keys.size() - 2]);
  }
  return 0;
}

}  // namespace

double work_of(const Segment& segment) {
  double work = 0;
  for (size_t i = 0; i < segment.operators.size(); ++i) {
    if (!segment.needed[i]) continue;
    const OperatorRecord& record = segment.operators[i];
    work += operations(record) / kOperationsPerByte;
    if (record.op->view) continue;
    for (const MetTensor& result : record.results) {
      if (result.defined)
        work += count(result) * static_cast<double>(c10::elementSize(result.dtype));
    }
  }
  return work;
}

}  // namespace oslo::recompute
