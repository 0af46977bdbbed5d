#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace oslo::test {

/// Counts the bytes that LibTorch's allocator for the CPU has handed out and not got back, of all
/// threads, from its construction on. One at a time; what was handed out may outlive it.
class CountedMemory {
 public:
  CountedMemory() : before_(c10::GetCPUAllocator()) {
    counting().inner = before_;
    counting().bytes = counting().most = 0;
    c10::SetCPUAllocator(&counting(), /*priority=*/100);
  }
  ~CountedMemory() { c10::SetCPUAllocator(before_, /*priority=*/100); }
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  int64_t bytes() const { return counting().bytes; }
  /// The most that it has been.
  int64_t most() const { return counting().most; }
  /// The same since the last call, or the construction.
  int64_t take_peak() { return counting().most.exchange(counting().bytes); }

 private:
  struct Counting final : c10::Allocator {
    c10::DataPtr allocate(size_t size) override {
      void* const data = inner->raw_allocate(size);
      const std::lock_guard<std::mutex> lock(mutex);
      if (data != nullptr) sizes[data] = static_cast<int64_t>(size);
      bytes += static_cast<int64_t>(size);
      most = std::max<int64_t>(most, bytes);
      return {data, data, &give_back, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
    void copy_data(void* to, const void* from, size_t size) const override {
      default_copy_data(to, from, size);
    }
    static void give_back(void* data) {
      if (data == nullptr) return;
      {
        const std::lock_guard<std::mutex> lock(counting().mutex);
        const auto found = counting().sizes.find(data);
        counting().bytes -= found->second;
        counting().sizes.erase(found);
      }
      counting().inner->raw_deallocate(data);
    }
    c10::Allocator* inner = nullptr;
    std::mutex mutex;
    std::unordered_map<void*, int64_t> sizes;
    std::atomic<int64_t> bytes = 0, most = 0;
  };

  static Counting& counting() {
    static auto& one = *new Counting();
    return one;
  }

  c10::Allocator* const before_;
};

}  // namespace oslo::test
