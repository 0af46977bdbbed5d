#pragma once

#include <oslo_cpp/oslo.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "tests/support/parity.h"

// A step of a model, explained from shapes, recorded, and counted.
namespace explain_test {

using torch::Tensor;

/// Traffic by group, collective and rule.
using Book = std::map<std::tuple<std::string, std::string, std::string>, oslo::Traffic>;

inline Book book_of(const oslo::Explanation& explanation) {
  Book book;
  const auto add = [&](const oslo::ExplainedMove& move) {
    book[{move.group, move.collective, move.rule}] += {1, move.elements, move.bytes};
  };
  for (const auto& call : explanation.calls) {
    for (const auto& move : call.moves) add(move);
  }
  for (const auto& move : explanation.outside) add(move);
  return book;
}

inline Book book_of(const oslo::MPU& mpu) {
  Book book;
  for (const auto& group : mpu.groups()) {
    for (const oslo::LedgerEntry& entry : group->ledger().entries()) {
      book[{group->name(), entry.operation, entry.rule}] += entry.traffic;
    }
  }
  return book;
}

inline void clear(const oslo::MPU& mpu) {
  for (const auto& group : mpu.groups()) group->ledger().clear();
}

inline std::string text_of(const Book& book) {
  std::string text;
  for (const auto& [key, traffic] : book) {
    const auto& [group, collective, rule] = key;
    text += c10::str(group, " ", collective, " ", rule, ": ", traffic.calls, " calls, ",
                     traffic.elements, " elements, ", traffic.bytes, " bytes\n");
  }
  return text;
}

/// What a call is told by, without what only one of two runs knows.
inline std::string line_of(const oslo::ExplainedCall& call) {
  std::string line = call.module + " " + call.operation;
  for (const auto& result : call.results) {
    line += c10::str(" ", c10::IntArrayRef(result.shape), " ", result.placement(), " / ",
                     result.gradient_placement());
  }
  for (const auto& move : call.moves) {
    if (!move.backward) line += c10::str("; ", move.collective, " ", move.bytes, " ", move.why);
  }
  Book backward;  // in the order of a backward pass, or of the forward
  for (const auto& move : call.moves) {
    if (move.backward)
      backward[{move.collective, move.why, move.rule}] += {1, move.elements, move.bytes};
  }
  return line + (backward.empty() ? "" : "; backward " + text_of(backward));
}

/// The forward's. `contiguous` is called where a tensor is not, which a part may be and a shape
/// not; `ones_like` starts a backward pass.
inline std::string lines_of(const oslo::Explanation& explanation) {
  std::string lines;
  for (const auto& call : explanation.calls) {
    if (call.operation == "aten::contiguous" || call.operation == "aten::ones_like") continue;
    lines += line_of(call) + "\n";
  }
  return lines;
}

}  // namespace explain_test
