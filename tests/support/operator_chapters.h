#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "parallelizers/placement/operators/operator_entry.h"
#include "tests/support/operator_examples.h"
#include "tests/support/operator_table.h"

// All examples, called once on one device.
namespace operator_examples {

/// Without the frames that LibTorch adds.
inline std::string short_text(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\nException raised from"));
}

/// Whether the kind of the example's family is what the door takes the operator for.
inline std::string misplaced(const Prepared& op, Kind kind) {
  const oslo::OperatorEntry& entry = oslo::entry_of(op.handle);
  switch (kind) {
    case Kind::ruled:
      return entry.rule == nullptr ? "has no rule" : "";
    case Kind::pointwise:
      return !entry.pointwise && entry.rule == nullptr ? "is not pointwise" : "";
    case Kind::decomposed:
      return entry.rule != nullptr || entry.pointwise || !entry.composite ? "is not decomposed"
                                                                          : "";
    case Kind::unruled:
      return entry.rule != nullptr || entry.pointwise || entry.composite ? "does not gather" : "";
  }
  return "";
}

struct Chapter {
  const Family* family;
  std::vector<Measured> measured;
  std::vector<Expected> expected;
};

inline std::vector<Chapter> prepare(const std::vector<Family>& families) {
  std::vector<Chapter> chapters;
  for (const Family& family : families) {
    Chapter chapter{&family, {}, {}};
    for (const Example& example : family.examples) {
      for (const std::string& name : example.operators) {
        try {
          Prepared op(example, name);
          const std::string wrong = misplaced(op, family.kind);
          EXPECT_TRUE(wrong.empty()) << name << " " << wrong << " (" << family.title << ")";
          const bool refused = example.check == Check::refused;
          chapter.expected.push_back(refused ? Expected() : on_one_device(op));
          chapter.measured.push_back({std::move(op), {}});
        } catch (const std::exception& error) {
          if (number_type() == at::kDouble) {  // many operators know few types
            ADD_FAILURE() << name << " on one device: " << short_text(error);
          }
        }
      }
    }
    chapters.push_back(std::move(chapter));
  }
  return chapters;
}

}  // namespace operator_examples
