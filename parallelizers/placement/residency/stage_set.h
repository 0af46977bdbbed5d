#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "mpu/base/error.h"

namespace oslo {

/// Stages of a pipeline, as a set; at most 64 of them. The empty set stands for "no stage in
/// particular": every rank has what it is said of.
class StageSet {
 public:
  static constexpr int kMost = 64;

  StageSet() = default;
  static StageSet of(int stage) {
    OSLO_CHECK(stage >= 0 && stage < kMost, "pipeline stage ", stage, ": stages 0 to ", kMost - 1,
               " are possible");
    return StageSet(uint64_t{1} << stage);
  }

  bool empty() const { return bits_ == 0; }
  int size() const { return std::popcount(bits_); }
  bool contains(int stage) const {
    return stage >= 0 && stage < kMost && (bits_ >> stage & 1) != 0;
  }
  /// The lowest stage of a set that is not empty.
  int first() const { return std::countr_zero(bits_); }
  /// The highest stage below `stage`; one is there.
  int last_before(int stage) const {
    return 63 - std::countl_zero(bits_ & ((uint64_t{1} << stage) - 1));
  }

  StageSet operator|(StageSet other) const { return StageSet(bits_ | other.bits_); }
  StageSet operator&(StageSet other) const { return StageSet(bits_ & other.bits_); }
  bool operator==(const StageSet&) const = default;

  /// "stage 1", "stages 0, 2", "every stage".
  std::string to_string() const {
    if (empty()) return "every stage";
    std::string text = size() == 1 ? "stage " : "stages ";
    const char* separator = "";
    for (int stage = 0; stage < kMost; ++stage) {
      if (!contains(stage)) continue;
      text += separator + std::to_string(stage);
      separator = ", ";
    }
    return text;
  }

 private:
  explicit StageSet(uint64_t bits) : bits_(bits) {}
  uint64_t bits_ = 0;
};

}  // namespace oslo
