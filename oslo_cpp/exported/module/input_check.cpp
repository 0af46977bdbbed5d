#include "oslo_cpp/exported/module/input_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>

#include "mpu/base/error.h"
#include "oslo_cpp/exported/file/codes.h"

namespace oslo::exported {
namespace {

/// "s13" of "s13" and of "Symbol('s13', positive=True, integer=True)"; empty for what was computed
/// from symbols.
std::string symbol_of(std::string expression) {
  constexpr std::string_view kSymbol = "Symbol('";
  if (expression.starts_with(kSymbol)) {
    const size_t end = expression.find('\'', kSymbol.size());
    const bool alone =
        end != std::string::npos && expression.find(')', end) + 1 == expression.size();
    if (!alone) return {};
    expression = expression.substr(kSymbol.size(), end - kSymbol.size());
  }
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (const char letter : expression) {
    if (!is_word(letter)) return {};
  }
  return expression;
}

bool is_real(c10::ScalarType type) {
  return c10::isFloatingType(type);
}

}  // namespace

InputCheck::InputCheck(const Document& graph, const std::optional<Document>& ranges,
                       const std::vector<std::string>& names) {
  if (ranges) {
    for (const auto& [symbol, range] : ranges->members()) {
      const auto least = range.find("min_val"), most = range.find("max_val");
      Range& added = ranges_[symbol];
      // PyTorch writes 2 where it has not asked whether 0 and 1 are special, and lets them pass.
      if (least && least->integer() > 2) added.least = least->integer();
      if (most) added.most = most->integer();
    }
  }
  const Document tensors = graph.member("tensor_values");
  for (const std::string& name : names) {
    Input input;
    input.name = name;
    const auto described = tensors.find(name.c_str());
    input.tensor = described.has_value();
    if (described) {
      input.type = scalar_type_of(described->member("dtype"));
      for (const Document& size : described->member("sizes").items()) {
        input.sizes.push_back(read_size(size));
      }
    } else if (const auto number = graph.member("sym_int_values").find(name.c_str())) {
      input.traced = read_size(*number).traced;
    }
    inputs_.push_back(std::move(input));
  }
}

InputCheck::Size InputCheck::read_size(const Document& written) {
  const auto [kind, value] = written.choice();
  Size size;
  if (kind == "as_int") {
    size.fixed = size.traced = value.integer();
    OSLO_CHECK(size.traced >= 0, value.where(), ": ", size.traced, " is negative");
    return size;
  }
  size.symbol = symbol_of(value.member("expr_str").text());
  if (const auto hint = value.find("hint")) {
    const auto [hint_kind, number] = hint->choice();
    if (hint_kind == "as_int") size.traced = std::max<int64_t>(number.integer(), 0);
  }
  return size;
}

std::vector<c10::IValue> InputCheck::examples() const {
  std::vector<c10::IValue> inputs;
  for (const Input& input : inputs_) {
    if (!input.tensor) {
      inputs.emplace_back(input.traced);
      continue;
    }
    std::vector<int64_t> sizes;
    for (const Size& size : input.sizes) sizes.push_back(size.traced);
    inputs.emplace_back(at::zeros(sizes, input.type));
  }
  return inputs;
}

std::vector<std::pair<std::string, std::string>> InputCheck::descriptions() const {
  std::vector<std::pair<std::string, std::string>> found;
  for (const Input& input : inputs_) {
    found.emplace_back(input.name, input.tensor ? expected(input) : "number");
  }
  return found;
}

std::string InputCheck::expected(const Input& input) const {
  std::string text = c10::str(input.type, " [");
  for (size_t i = 0; i < input.sizes.size(); ++i) {
    const Size& size = input.sizes[i];
    text += i == 0 ? "" : ", ";
    text += size.fixed ? std::to_string(*size.fixed) : size.symbol.empty() ? "*" : size.symbol;
    const auto range = ranges_.find(size.symbol);
    if (size.fixed || range == ranges_.end()) continue;
    text += " from " + std::to_string(range->second.least);
    if (range->second.most != std::numeric_limits<int64_t>::max()) {
      text += " to " + std::to_string(range->second.most);
    }
  }
  return text + "]";
}

void InputCheck::check(const std::vector<c10::IValue>& inputs) const {
  if (inputs.size() != inputs_.size()) {
    std::string names;
    for (const Input& input : inputs_) names += (names.empty() ? "" : ", ") + input.name;
    fail("forward: the exported program takes ", inputs_.size(), " inputs (", names, "), and got ",
         inputs.size());
  }
  std::map<std::string, int64_t> symbols;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = inputs_[i];
    if (!input.tensor) {
      OSLO_CHECK(inputs[i].isScalar(), "forward: input ", input.name, " is a number, and got a ",
                 inputs[i].tagKind());
      continue;
    }
    OSLO_CHECK(inputs[i].isTensor() && inputs[i].toTensor().defined(), "forward: input ",
               input.name, " is a tensor, and got a ", inputs[i].tagKind());
    const at::Tensor& tensor = inputs[i].toTensor();
    const auto refuse = [&] {
      fail("forward: input ", input.name, " is ", tensor.scalar_type(), " ", tensor.sizes(),
           ", and the program was exported for ", expected(input),
           "; export it with dynamic_shapes for sizes that change");
    };
    const bool same = tensor.scalar_type() == input.type ||
                      (is_real(tensor.scalar_type()) && is_real(input.type));
    if (!same || tensor.dim() != static_cast<int64_t>(input.sizes.size())) refuse();
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      const Size& size = input.sizes[d];
      const int64_t seen = tensor.size(d);
      if (size.fixed && seen != *size.fixed) refuse();
      if (size.fixed || size.symbol.empty()) continue;
      if (symbols.try_emplace(size.symbol, seen).first->second != seen) refuse();
      const auto range = ranges_.find(size.symbol);
      if (range == ranges_.end()) continue;
      if (seen < range->second.least || seen > range->second.most) refuse();
    }
  }
}

}  // namespace oslo::exported
