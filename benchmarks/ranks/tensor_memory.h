#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>

namespace bench {

/// Counts what tensors of this thread take of a kind of device and give back, as long as a
/// `c10::DebugInfoGuard` of `PROFILER_STATE` holds it.
class TensorMemory : public c10::MemoryReportingInfoBase {
 public:
  explicit TensorMemory(c10::DeviceType type) : type_(type) {}
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device device) override {
    if (device.type() != type_) return;
    held_ += size;
    most_ = std::max(most_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t held() const { return held_; }
  int64_t most() const { return most_; }

 private:
  c10::DeviceType type_;
  int64_t held_ = 0, most_ = 0;
};

}  // namespace bench
