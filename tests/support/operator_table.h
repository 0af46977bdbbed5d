#pragma once

#include <set>
#include <sstream>

#include "tests/support/operator_measure.h"

// docs/operators.md from what was measured.
namespace operator_examples {

struct Measured {
  Prepared op;
  std::vector<Outcome> outcomes;
};

inline std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

/// "5x7", "[5x7, 5x6]", "1", "{2, 0}".
inline std::string text_of(const c10::IValue& value) {
  const auto shape = [](const at::Tensor& tensor) -> std::string {
    if (tensor.dim() == 0) return "scalar";
    std::vector<std::string> sizes;
    for (const int64_t size : tensor.sizes()) sizes.push_back(std::to_string(size));
    return sizes.size() == 1 ? "(" + sizes[0] + ")" : joined(sizes, "x");
  };
  if (value.isTensor()) return value.toTensor().defined() ? shape(value.toTensor()) : "none";
  std::vector<std::string> parts;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) parts.push_back(shape(tensor));
    return "[" + joined(parts, ", ") + "]";
  }
  if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) {
      parts.push_back(tensor ? shape(*tensor) : ":");
    }
    return "[" + joined(parts, ", ") + "]";
  }
  if (value.isIntList()) {
    for (const int64_t number : value.toIntVector()) parts.push_back(std::to_string(number));
    return "{" + joined(parts, ", ") + "}";
  }
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isDouble()) return c10::str(value.toDouble());
  if (value.isString()) return value.toStringRef();
  return value.isNone() ? "none" : "..";
}

/// Lines of at most 100 characters.
inline std::string filled(const std::string& text, const std::string& indent = "") {
  std::istringstream words(text);
  std::string lines, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > 100) {
      lines += line + "\n";
      line = indent + word;
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
  }
  return lines + line + "\n";
}

/// The arguments of an example, up to six.
inline std::string call_of(const Example& example) {
  std::vector<std::string> parts;
  for (const Argument& argument : example.arguments) {
    if (parts.size() == 6) {
      parts.push_back("..");
      break;
    }
    const std::string name = argument.name.empty() ? "" : argument.name + "=";
    parts.push_back(name + text_of(argument.value));
  }
  const std::string note = example.note.empty() ? "" : ", " + example.note;
  return "(" + joined(parts, ", ") + ")" + note;
}

inline std::string result_of(const Outcome& outcome) {
  if (outcome.refused) return "refused, by an error";
  if (outcome.no_tensor) return "no tensor";
  if (outcome.result < 0) return "whole";
  return c10::str("cut on dim ", outcome.result, outcome.in_blocks ? ", in blocks" : "");
}

/// Rows of an operator: cuts with the same outcome share one.
class Rows {
 public:
  explicit Rows(const Measured& measured) : measured_(measured) {
    for (const Outcome& outcome : measured.outcomes) add(outcome);
  }

  /// The table's cells without the operators': equal for operators that behave alike.
  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const Row& row : rows_) {
      const bool alike = row.same_dim && row.dims > 1;
      lines.push_back("| " + where(row) + " | " + (alike ? "cut alike" : row.result) + " | " +
                      row.forward + " | " + row.backward + " |");
    }
    return lines;
  }

 private:
  struct Row {
    std::vector<std::pair<size_t, std::string>> cuts;  ///< operand, dimension
    std::string result, forward, backward;
    bool same_dim;
    int dims = 1;
  };

  void add(const Outcome& outcome) {
    const Cutting& cutting = outcome.cutting;
    std::string where = std::to_string(cutting.dim);
    if (cutting.blocks > 1) where += c10::str(" in ", cutting.blocks, " blocks");
    if (cutting.unit > 1) where += c10::str(" in units of ", cutting.unit);
    std::string forward = outcome.refused           ? ""
                          : outcome.gathered_only   ? "gathers it"
                          : outcome.forward.empty() ? "none"
                                                    : outcome.forward;
    if (!outcome.reasons.empty() && !outcome.gathered_only) forward = "gathers: " + forward;
    const std::string backward = outcome.refused             ? ""
                                 : !outcome.backward.empty() ? outcome.backward
                                                             : "none";
    const bool same = outcome.result == cutting.dim && !outcome.in_blocks;
    for (Row& row : rows_) {
      const bool result_fits = row.result == result_of(outcome) || (row.same_dim && same);
      if (row.forward != forward || row.backward != backward || !result_fits) continue;
      row.same_dim &= same;
      row.dims += row.cuts.back().second != where;
      row.cuts.emplace_back(cutting.operand, where);
      return;
    }
    rows_.push_back({{{cutting.operand, where}}, result_of(outcome), forward, backward, same});
  }

  size_t dims_cut(size_t operand) const {
    const at::Tensor& tensor = measured_.op.operands[operand];
    return static_cast<size_t>(std::count_if(tensor.sizes().begin(), tensor.sizes().end(),
                                             [](int64_t size) { return size > 1; }));
  }

  std::string where(const Row& row) const {
    std::vector<std::string> operands;
    for (size_t i = 0; i < measured_.op.operands.size(); ++i) {
      std::vector<std::string> dims;
      size_t plain = 0;
      for (const auto& [operand, dim] : row.cuts) {
        if (operand != i) continue;
        dims.push_back(dim);
        plain += dim.size() == 1;
      }
      if (dims.empty()) continue;
      const bool any = plain == dims.size() && plain > 1 && plain == dims_cut(i);
      operands.push_back("`" + measured_.op.operand_names[i] + "` " +
                         (any ? "any" : joined(dims, ", ")));
    }
    return joined(operands, "; ");
  }

  const Measured& measured_;
  std::vector<Row> rows_;
};

inline std::string quoted(const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  for (const std::string& name : names) parts.push_back("`" + name + "`");
  return joined(parts, ", ");
}

/// The rows of one family; operators with the same rows share them, and the first one's example.
inline std::string table_of(const std::vector<Measured>& measured) {
  struct Entry {
    std::vector<std::string> names, lines;
    const Example* example;
    std::vector<int64_t> sizes;
  };
  std::vector<Entry> entries;
  for (const Measured& one : measured) {
    const std::vector<std::string> lines = Rows(one).lines();
    const std::vector<int64_t> sizes = one.op.operands[0].sizes().vec();
    const auto same = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.lines == lines && entry.sizes == sizes &&
             entry.example->note == one.op.example->note;
    });
    if (same != entries.end()) {
      same->names.push_back(one.op.name);
    } else {
      entries.push_back({{one.op.name}, lines, one.op.example, sizes});
    }
  }
  std::string text =
      "| operator | example | cut | result | forward | backward |\n|---|---|---|---|---|---|\n";
  for (const Entry& entry : entries) {
    for (size_t i = 0; i < entry.lines.size(); ++i) {
      text += i == 0 ? "| " + quoted(entry.names) + " | " + call_of(*entry.example) + " " : "| | ";
      text += entry.lines[i] + "\n";
    }
  }
  return text;
}

/// "gathers, and why": justifications with the operators that gather for them.
inline std::string reasons_of(const std::vector<Measured>& measured) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  for (const Measured& one : measured) {
    const bool gathers =
        std::any_of(one.outcomes.begin(), one.outcomes.end(),
                    [](const Outcome& outcome) { return !outcome.reasons.empty(); });
    if (!gathers) continue;
    auto same = std::find_if(reasons.begin(), reasons.end(),
                             [&](const auto& r) { return r.first == one.op.example->why; });
    if (same == reasons.end()) same = reasons.insert(reasons.end(), {one.op.example->why, {}});
    auto& names = same->second;
    if (std::find(names.begin(), names.end(), one.op.name) == names.end()) {
      names.push_back(one.op.name);
    }
  }
  std::string text;
  for (const auto& [why, names] : reasons) {
    text += filled("- " + why + ": " + quoted(names) + ".", "  ");
  }
  return text;
}

/// Names that LibTorch tags as pointwise, without those for out= and in-place variants.
inline std::vector<std::string> tagged_pointwise() {
  std::set<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || name.name.back() == '_') continue;
    const auto handle = c10::Dispatcher::singleton().findOp(name);
    if (handle && handle->hasSchema() && handle->hasTag(at::Tag::pointwise)) {
      names.insert(name.name.substr(6));
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace operator_examples
