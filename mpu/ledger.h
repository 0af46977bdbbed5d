#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace oslo {

/// What one kind of call moved. `elements` and `bytes` are those *received by this rank*, counted
/// at ring cost (NCCL's convention): all-reduce 2(n-1)/n of the tensor, all-gather and
/// reduce-scatter the other ranks' parts, broadcast the tensor on every rank but its root.
struct Traffic {
  int64_t calls = 0;
  int64_t elements = 0;
  int64_t bytes = 0;

  Traffic& operator+=(const Traffic& other);
  Traffic operator-(const Traffic& other) const;
  bool operator==(const Traffic& other) const = default;
};

/// One line of a ledger: which collective, asked for by which rule ("-" outside of any).
struct LedgerEntry {
  std::string operation;
  std::string rule;
  Traffic traffic;
};

/// Counts what a group moved, by operation and by the rule that asked for it. Deterministic: tests
/// assert it exactly. A group of one rank moves nothing and counts nothing. Safe to use from
/// several threads.
class Ledger {
 public:
  /// `operation` and `rule` must live as long as the program (they are compared by address first).
  void record(const char* operation, int64_t elements, int64_t bytes);

  std::vector<LedgerEntry> entries() const;
  /// The sum over rules; all operations when `operation` is empty.
  Traffic total(const std::string& operation = "") const;
  void clear();

 private:
  struct Row {
    const char* operation;
    const char* rule;
    Traffic traffic;
  };
  mutable std::mutex mutex_;
  std::vector<Row> rows_;
};

/// Names the rule on whose behalf this thread communicates, until it goes out of scope.
class RuleScope {
 public:
  explicit RuleScope(const char* rule);
  ~RuleScope();
  RuleScope(const RuleScope&) = delete;
  RuleScope& operator=(const RuleScope&) = delete;

  static const char* current();

 private:
  const char* previous_;
};

}  // namespace oslo
