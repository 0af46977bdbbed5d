#include <ATen/ATen.h>

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/matrix/product_by_heads.h"

namespace oslo {
namespace {

/// '-' for dimensions of one element that stretch to the size that other operands have there.
void mark_stretched(DimensionMap& map, c10::ArrayRef<Value> operands) {
  std::map<char, int64_t> longest;
  for (size_t i = 0; i < operands.size(); ++i) {
    for (int64_t d = 0; d < operands[i].dim(); ++d) {
      int64_t& size = longest.try_emplace(map.operands[i][d], 1).first->second;
      if (operands[i].size(d) != 1) size = operands[i].size(d);
    }
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    for (int64_t d = 0; d < operands[i].dim(); ++d) {
      char& letter = map.operands[i][d];
      if (operands[i].size(d) == 1 && longest[letter] != 1) letter = '-';
    }
  }
}

/// The letter of dimension `d` from the right, from 1 on, of those that "..." stands for: none that
/// an equation can spell.
char unnamed(int64_t d) {
  return static_cast<char>(127 + d);
}
constexpr int64_t kMostUnnamed = 128;

bool is_unnamed(char letter) {
  return static_cast<unsigned char>(letter) > 127;
}

/// The dimensions that "..." stands for get letters of their own, aligned from the right.
std::string without_ellipsis(const std::string& term, int64_t dims) {
  const size_t at = term.find("...");
  if (at == std::string::npos) return term;
  std::string own;
  for (int64_t d = dims - static_cast<int64_t>(term.size() - 3); d > 0; --d) own += unnamed(d);
  return term.substr(0, at) + own + term.substr(at + 3);
}

/// Whether the equation is made of letters, "...", "," and one "->".
bool is_spelt(std::string equation) {
  if (const size_t arrow = equation.find("->"); arrow != std::string::npos) {
    equation.replace(arrow, 2, ",");
  }
  return std::all_of(equation.begin(), equation.end(), [](char sign) {
    const auto code = static_cast<unsigned char>(sign);
    return code < 128 && (std::isalpha(code) || sign == '.' || sign == ',');
  });
}

/// The map that an einsum equation spells; none where the equation does not fit the operands.
std::optional<DimensionMap> map_of(std::string equation, c10::ArrayRef<Value> operands) {
  std::erase(equation, ' ');
  if (!is_spelt(equation)) return std::nullopt;
  const size_t arrow = equation.find("->");
  std::string left = equation.substr(0, arrow);
  int64_t unnamed_dims = 0;
  DimensionMap map;
  std::map<char, int> seen;
  for (size_t i = 0, start = 0; i < operands.size(); ++i) {
    if (start > left.size()) return std::nullopt;
    const size_t end = std::min(left.find(',', start), left.size());
    if (operands[i].dim() > kMostUnnamed) return std::nullopt;
    const std::string own = without_ellipsis(left.substr(start, end - start), operands[i].dim());
    if (static_cast<int64_t>(own.size()) != operands[i].dim()) return std::nullopt;
    for (const char letter : own) {
      // A diagonal needs both of its dimensions.
      if (std::count(own.begin(), own.end(), letter) > 1) map.whole += letter;
      if (is_unnamed(letter)) {
        unnamed_dims = std::max<int64_t>(unnamed_dims, static_cast<unsigned char>(letter) - 127);
      }
      ++seen[letter];
    }
    map.operands.push_back(own);
    start = end + 1;
  }
  std::string result;
  if (arrow != std::string::npos) {
    result = equation.substr(arrow + 2);
    const int64_t letters = static_cast<int64_t>(result.size()) - 3;
    result = without_ellipsis(result, letters + unnamed_dims);
  } else {
    // By convention: what "..." stands for, then the letters that appear once, sorted.
    result = without_ellipsis("...", unnamed_dims);
    for (const auto& [letter, times] : seen) {
      if (times == 1 && !is_unnamed(letter)) result += letter;
    }
  }
  map.results = {result};
  mark_stretched(map, operands);
  return map;
}

/// einsum(equation, tensors, path): the equation is the map.
void einsum(Call& call) {
  const auto map = map_of(call.argument(0).toStringRef(), call.operands());
  if (!map) throw ShapeMismatch("einsum: the equation does not fit the operands");
  auto operands = call.operands();
  const std::optional<BackToPositions> back = cut_by_heads(*map, operands);
  const Resolution resolution = resolve(*map, operands);
  c10::SmallVector<at::Tensor, 2> local;
  for (Value& operand : operands) local.push_back(std::move(operand.local));
  at::Tensor sums = call.call_below(local)[0].toTensor();
  call.result(brought_back(resolution.finish(std::move(sums), map->results[0]), back));
}

/// tensordot(self, other, dims_self, dims_other): dimensions that are summed share a letter.
void tensordot(Call& call) {
  const auto operands = call.operands();
  const int64_t left_dims = operands[0].dim(), right_dims = operands[1].dim();
  const std::vector<int64_t> ours = call.integers(2), theirs = call.integers(3);
  if (ours.size() != theirs.size()) throw ShapeMismatch("tensordot: unequal dimensions to sum");
  std::string left = letters(left_dims), right = letters(left_dims + right_dims).substr(left_dims);
  std::string kept_left = left, kept_right = right;
  for (size_t i = 0; i < ours.size(); ++i) {
    const char letter = left[c10::maybe_wrap_dim(ours[i], left_dims)];
    std::erase(kept_left, letter);
    char& other = right[c10::maybe_wrap_dim(theirs[i], right_dims)];
    std::erase(kept_right, other);
    other = letter;
  }
  DimensionMap map{{left, right}, {kept_left + kept_right}};
  mark_stretched(map, operands);
  call.run(map);
}

/// bilinear(input1, input2, weight, bias): (.., I), (.., J), (O, I, J) -> (.., O).
void bilinear(Call& call) {
  c10::SmallVector<Value, 3> operands{call.value(0), call.value(1), call.value(2)};
  const std::string rows = letters(operands[0].dim() - 1), result = rows + "O";
  if (operands[0].dim() != operands[1].dim()) throw ShapeMismatch("bilinear: unequal rank");
  const Resolution resolution = resolve({{rows + "I", rows + "J", "OIJ"}, {result}}, operands);
  Value y = resolution.finish(
      at::einsum("...i,oij,...j->...o", {operands[0].local, operands[2].local, operands[1].local}),
      result);
  if (const Value bias = call.value(3); bias.defined()) y = add_values(y, bias);
  call.result(std::move(y));
}

/// Letters of leading dimensions, aligned from the right; one element stretches.
std::string batch_letters(const Value& x, const Value& other, const std::string& all) {
  const int64_t own = x.dim() - 2, others = other.dim() - 2;
  std::string batch = all.substr(all.size() - own);
  for (int64_t d = 1; d <= std::min(own, others); ++d) {
    if (x.size(own - d) == 1 && other.size(others - d) != 1) batch[own - d] = '-';
  }
  return batch;
}

/// cdist(x1, x2, p, compute_mode): (.., P, M), (.., R, M) -> (.., P, R), M whole.
void distances(Call& call) {
  const Value x = call.value(0), y = call.value(1);
  if (x.dim() < 2 || y.dim() < 2) throw ShapeMismatch("cdist: fewer than two dimensions");
  const std::string all = letters(std::max(x.dim(), y.dim()) - 2);
  call.run({{batch_letters(x, y, all) + "PM", batch_letters(y, x, all) + "RM"}, {all + "PR"}, "M"});
}

}  // namespace

void add_contraction_rules(RuleTable& table) {
  table.add({"aten::einsum"}, einsum);
  table.add({"aten::tensordot"}, tensordot);
  table.add({"aten::bilinear"}, bilinear);
  table.add({"aten::cdist"}, distances);
}

}  // namespace oslo
