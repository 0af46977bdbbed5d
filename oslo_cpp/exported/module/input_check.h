#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oslo_cpp/exported/file/document.h"

namespace oslo::exported {

/// What a program was exported for: the types and sizes of the tensors that forward takes. A size
/// that Python was told is dynamic has a symbol, equal ones the same, and a range.
///
/// A graph keeps numbers that it was traced with (`arange(8)`), so that inputs of other sizes could
/// run and give something else; they are refused, by name.
class InputCheck {
 public:
  struct Range {
    int64_t least = 0, most = std::numeric_limits<int64_t>::max();
  };
  using Ranges = std::map<std::string, Range>;

  /// Of the inputs `names`; `graph` describes them, `ranges` are of schema.py's ExportedProgram.
  InputCheck(const Document& graph, const std::optional<Document>& ranges,
             const std::vector<std::string>& names);

  /// Throws `Error` for another number of inputs, and for types and sizes that do not fit. A
  /// floating-point tensor may be of any precision.
  void check(const std::vector<c10::IValue>& inputs) const;

  /// Zeros of the types and sizes that the program was traced with.
  std::vector<c10::IValue> examples() const;
  /// The inputs' names, and what they have to be: "tokens", "Long [s52 from 0 to 64, 6]".
  std::vector<std::pair<std::string, std::string>> descriptions() const;

 private:
  struct Size {
    std::optional<int64_t> fixed;
    std::string symbol;  ///< empty: any size
    int64_t traced = 1;  ///< what it was in Python
  };
  struct Input {
    std::string name;
    bool tensor = true;
    c10::ScalarType type = c10::ScalarType::Undefined;
    std::vector<Size> sizes;
    int64_t traced = 1;  ///< of a number
  };
  static Size read_size(const Document& written);
  std::string expected(const Input& input) const;

  std::vector<Input> inputs_;
  Ranges ranges_;
};

}  // namespace oslo::exported
