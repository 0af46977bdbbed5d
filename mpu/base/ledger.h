#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace oslo {

/// What one kind of call costs. `elements` and `bytes` are those *received by this rank*, by the
/// ring's formula (NCCL's convention): all-reduce 2(n-1)/n of the tensor, all-gather and
/// reduce-scatter the other ranks' parts, broadcast the tensor on every rank but its root, receive
/// the tensors, send nothing. They do not depend on the transport: plans are compared by them.
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
  /// Bytes that the transport brought to this rank for these calls: padding, and what it does in
  /// another way than a ring, included; 0 for those that were only foreseen (dry runs).
  int64_t moved = 0;
};

/// On whose behalf a thread communicates. The texts live as long as the program.
struct Asker {
  const char* rule = "-";    ///< an operator, or whoever else asked; "-" outside of any
  const char* purpose = "";  ///< what the engine moves a value for; empty: a step of the rule's own
  int64_t call = 0;          ///< the program's call, by the number that who watches calls gave it
  bool backward = false;     ///< of a gradient; of one that a dry run only foresees, too
};

/// One call as it is counted.
struct CountedCall {
  const char* operation;
  Asker asker;
  Traffic traffic;
  int64_t moved;
};

/// Counts what a group's calls cost, by operation and by the rule that asked for it, in two
/// columns: the ring's formula, and what the transport moves. Both are deterministic: tests assert
/// them exactly. A group of one rank moves nothing and counts nothing. Safe to use from several
/// threads.
class Ledger {
 public:
  /// `operation` and `rule` must live as long as the program (they are compared by address first).
  void record(const char* operation, int64_t elements, int64_t bytes, int64_t moved);

  /// `watch` is told of every call from now on, on the thread that makes it, one at a time; null:
  /// nobody. It must not communicate.
  void set_watch(std::function<void(const CountedCall&)> watch);

  std::vector<LedgerEntry> entries() const;
  /// The sum over rules; all operations when `operation` is empty.
  Traffic total(const std::string& operation = "") const;
  /// The same of the second column.
  int64_t moved(const std::string& operation = "") const;
  void clear();

 private:
  struct Row {
    const char* operation;
    const char* rule;
    Traffic traffic;
    int64_t moved;
  };
  mutable std::mutex mutex_;
  std::vector<Row> rows_;
  std::function<void(const CountedCall&)> watch_;
};

/// Says for whom this thread communicates, until it goes out of scope.
class AskerScope {
 public:
  explicit AskerScope(const Asker& asker);
  ~AskerScope();
  AskerScope(const AskerScope&) = delete;
  AskerScope& operator=(const AskerScope&) = delete;

  /// The same as outside, for another purpose.
  static AskerScope with_purpose(const char* purpose);
  /// The same as outside, of the gradient.
  static AskerScope of_gradient();
  static const Asker& current();

 private:
  Asker previous_;
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
