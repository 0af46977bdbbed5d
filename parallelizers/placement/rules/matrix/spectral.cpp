#include <ATen/ATen.h>

#include "parallelizers/placement/engine/pointwise.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

/// _fft_r2c, _fft_c2r, _fft_c2c (self, dims, ...): transformed dimensions must be whole.
void transform(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  std::string whole;
  for (const int64_t d : call.dimensions(1, dims)) whole += own[d];
  run_on_elements(call, {{own}, {own}, whole});
}

/// stft (.., L) -> (.., F, T), or with real and imaginary parts apart: signals of a batch may lie
/// on different ranks.
template <bool centred>
void short_time_transform(Call& call) {
  const auto operands = call.operands();
  const std::string own = letters(operands[0].dim()), batch = own.substr(0, own.size() - 1);
  constexpr size_t kComplex = centred ? 9 : 7;
  const bool complex =
      operands[0].local.is_complex() || call.none(kComplex) || call.boolean(kComplex);
  DimensionMap map{{own}, {batch + (complex ? "--" : "---")}, own.substr(own.size() - 1)};
  if (operands.size() > 1) map.operands.push_back("W");
  map.whole += 'W';
  run_on_elements(call, map);
}

/// istft (.., F, T) -> (.., L).
void inverse_short_time_transform(Call& call) {
  const auto operands = call.operands();
  const std::string own = letters(operands[0].dim());
  if (own.size() < 2) throw ShapeMismatch("istft: fewer than two dimensions");
  DimensionMap map{{own}, {own.substr(0, own.size() - 2) + "-"}, own.substr(own.size() - 2) + "W"};
  if (operands.size() > 1) map.operands.push_back("W");
  run_on_elements(call, map);
}

/// view_as_real: real and imaginary part side by side.
void as_real(Call& call) {
  const std::string own = call.letters(0);
  call.run({{own}, {own + "-"}}, [&](c10::ArrayRef<at::Tensor> local) {
    return call.call_below({local[0].resolve_conj()});
  });
}

/// view_as_complex: both parts of a number in one place.
void as_complex(Call& call) {
  const std::string own = call.letters(0);
  if (own.empty()) throw ShapeMismatch("view_as_complex: a scalar");
  call.run({{own}, {own.substr(0, own.size() - 1)}, own.substr(own.size() - 1)});
}

/// linalg_cross(self, other, dim): products within `dim`.
void cross(Call& call) {
  DimensionMap map = pointwise_map(call.operands());
  const auto dims = static_cast<int64_t>(map.results[0].size());
  map.whole = std::string(1, map.results[0][call.dimension(2, dims)]);
  call.run(map);
}

}  // namespace

void add_spectral_rules(RuleTable& table) {
  table.add({"aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"}, transform);
  table.add({"aten::stft"}, short_time_transform<false>);
  table.add({"aten::stft.center"}, short_time_transform<true>);
  table.add({"aten::istft"}, inverse_short_time_transform);
  table.add({"aten::view_as_real"}, as_real);
  table.add({"aten::view_as_complex"}, as_complex);
  table.add_pointwise({"aten::complex", "aten::polar", "aten::_conj"});
  table.add({"aten::linalg_cross"}, cross);
}

}  // namespace oslo
