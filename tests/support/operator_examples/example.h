#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <sstream>
#include <string>
#include <vector>

// One call of every operator that the rule table names: what docs/operators.md is measured on.
namespace operator_examples {

/// An argument in the order of the operator's schema, or by name. Tensors that require a gradient
/// stand for operands that do.
struct Argument {
  c10::IValue value;
  std::string name = {};

  Argument() = default;  ///< none
  Argument(const at::Tensor& tensor) : value(tensor) {}
  Argument(c10::IValue value) : value(std::move(value)) {}
  Argument(int number) : value(int64_t{number}) {}
  Argument(double number) : value(number) {}
  Argument(bool truth) : value(truth) {}
  Argument(const char* text) : value(std::string(text)) {}
  Argument(std::initializer_list<int> numbers)
      : value(std::vector<int64_t>(numbers.begin(), numbers.end())) {}
};

inline const Argument kNone;

inline Argument is(std::string name, Argument argument) {
  argument.name = std::move(name);
  return argument;
}

/// A cut beside those that the test makes by itself: in several blocks, or in whole units.
struct Cutting {
  size_t operand;
  int64_t dim;
  int64_t blocks = 1;
  int64_t unit = 1;
};

enum class Check {
  values,  ///< results and gradients are those of one device
  shapes,  ///< random or uninitialized: the shapes are
  refused  ///< an error, by name
};

struct Example {
  std::vector<std::string> operators;  ///< without "aten::"
  std::vector<Argument> arguments;
  std::string why;   ///< it gathers somewhere
  std::string note;  ///< what the arguments do not show
  std::vector<Cutting> cuttings = {};
  Check check = Check::values;

  /// `names`: separated by spaces. All of them take the same arguments.
  Example(const char* names, std::vector<Argument> arguments, const char* why = "")
      : arguments(std::move(arguments)), why(why) {
    std::istringstream words(names);
    for (std::string word; words >> word;) operators.push_back(word);
  }
  Example also(Cutting cutting) && {
    cuttings.push_back(cutting);
    return std::move(*this);
  }
  Example noted(const char* text) && {
    note = text;
    return std::move(*this);
  }
  Example checked_by(Check how) && {
    check = how;
    return std::move(*this);
  }
};

enum class Kind {
  ruled,       ///< the rule table has a rule
  pointwise,   ///< the rule table lists it as pointwise
  decomposed,  ///< no rule, made of operators that have one
  unruled      ///< no rule at all
};

struct Family {
  std::string title;
  std::string text;
  std::vector<Example> examples;
  Kind kind = Kind::ruled;
};

// Tensors for examples. Sizes divide by nothing.

/// Of the examples' numbers; `families` sets it before the ranks start.
inline at::ScalarType& number_type() {
  static at::ScalarType type = at::kDouble;
  return type;
}

/// Numbers that have a gradient.
inline at::Tensor x(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).to(number_type()).set_requires_grad(true);
}
/// Numbers between 0 and 1 that have a gradient.
inline at::Tensor fraction(at::IntArrayRef sizes) {
  return (at::rand(sizes, at::kDouble) * 0.8 + 0.1).to(number_type()).set_requires_grad(true);
}
inline at::Tensor constant(at::IntArrayRef sizes) {
  return (at::rand(sizes, at::kDouble) * 0.8 + 0.1).to(number_type());
}
inline at::Tensor complex(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kComplexDouble).set_requires_grad(true);
}
inline at::Tensor mask(at::IntArrayRef sizes) {
  return at::rand(sizes).gt(0.4);
}
inline at::Tensor below(int64_t bound, at::IntArrayRef sizes) {
  return at::randint(bound, sizes, at::kLong);
}
inline at::Tensor numbers(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}
/// Rows of `count` different places below `bound`.
inline at::Tensor places(int64_t rows, int64_t count, int64_t bound) {
  return at::rand({rows, bound}).argsort(int64_t{1}).narrow(1, 0, count).contiguous();
}
inline at::Tensor sorted(int64_t size) {
  return std::get<0>(at::randn({size}, at::kDouble).to(number_type()).sort());
}

inline c10::IValue list(std::vector<at::Tensor> tensors) {
  return tensors;
}
/// Indices; an undefined tensor stands for ":".
inline c10::IValue indices(const std::vector<at::Tensor>& tensors) {
  c10::List<std::optional<at::Tensor>> list;
  for (const at::Tensor& tensor : tensors) {
    list.push_back(tensor.defined() ? std::optional(tensor) : std::nullopt);
  }
  return list;
}

}  // namespace operator_examples
