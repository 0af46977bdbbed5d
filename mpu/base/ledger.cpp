#include "mpu/base/ledger.h"

#include <cstring>
#include <utility>

namespace oslo {
namespace {

thread_local Asker current_asker;

bool same(const char* a, const char* b) {
  return a == b || std::strcmp(a, b) == 0;
}

}  // namespace

Traffic& Traffic::operator+=(const Traffic& other) {
  calls += other.calls;
  elements += other.elements;
  bytes += other.bytes;
  return *this;
}

Traffic Traffic::operator-(const Traffic& other) const {
  return {calls - other.calls, elements - other.elements, bytes - other.bytes};
}

void Ledger::record(const char* operation, int64_t elements, int64_t bytes, int64_t moved) {
  const char* rule = RuleScope::current();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (watch_) watch_({operation, current_asker, {1, elements, bytes}, moved});
  for (Row& row : rows_) {
    if (same(row.operation, operation) && same(row.rule, rule)) {
      row.traffic += {1, elements, bytes};
      row.moved += moved;
      return;
    }
  }
  rows_.push_back({operation, rule, {1, elements, bytes}, moved});
}

void Ledger::set_watch(std::function<void(const CountedCall&)> watch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watch_ = std::move(watch);
}

std::vector<LedgerEntry> Ledger::entries() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<LedgerEntry> entries;
  for (const Row& row : rows_) {
    entries.push_back({row.operation, row.rule, row.traffic, row.moved});
  }
  return entries;
}

Traffic Ledger::total(const std::string& operation) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Traffic sum;
  for (const Row& row : rows_) {
    if (operation.empty() || operation == row.operation) sum += row.traffic;
  }
  return sum;
}

int64_t Ledger::moved(const std::string& operation) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t sum = 0;
  for (const Row& row : rows_) {
    if (operation.empty() || operation == row.operation) sum += row.moved;
  }
  return sum;
}

void Ledger::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  rows_.clear();
}

AskerScope::AskerScope(const Asker& asker) : previous_(std::exchange(current_asker, asker)) {}

AskerScope::~AskerScope() {
  current_asker = previous_;
}

AskerScope AskerScope::with_purpose(const char* purpose) {
  Asker asker = current_asker;
  asker.purpose = purpose;
  return AskerScope(asker);
}

AskerScope AskerScope::of_gradient() {
  Asker asker = current_asker;
  asker.backward = true;
  return AskerScope(asker);
}

const Asker& AskerScope::current() {
  return current_asker;
}

RuleScope::RuleScope(const char* rule) : previous_(std::exchange(current_asker.rule, rule)) {}

RuleScope::~RuleScope() {
  current_asker.rule = previous_;
}

const char* RuleScope::current() {
  return current_asker.rule;
}

}  // namespace oslo
