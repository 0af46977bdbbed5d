#include "parallelizers/memory/budget/memory_account.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace oslo {
namespace {

/// Of a rank on the CPU.
class HostAccount final : public MemoryAccount {
 public:
  int64_t held() const override { return held_; }
  int64_t take_peak() override { return peak_.exchange(held_); }
  bool counts(const c10::Storage& storage) const override;

  void add(int64_t bytes) {
    const int64_t now = held_ += bytes;
    int64_t most = peak_;
    while (now > most && !peak_.compare_exchange_weak(most, now)) {
    }
  }

 private:
  std::atomic<int64_t> held_ = 0, peak_ = 0;
};

std::shared_ptr<HostAccount>& account_of_thread() {
  static thread_local std::shared_ptr<HostAccount> account;
  return account;
}

/// Hands out what the allocator before it does, and keeps book. LibTorch asks that what an
/// allocator hands out is its own context, so that the book is found by the address.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& get() {
    static auto& one = *new CountingAllocator();
    return one;
  }

  /// Puts it in front of the process's allocator, where it is not there already, perhaps behind one
  /// of the program's that came later.
  void install() {
    const std::lock_guard<std::mutex> lock(install_mutex_);
    c10::Allocator* const first = c10::GetCPUAllocator();
    asked_ = false;
    first->allocate(1);
    if (asked_) return;
    inner_ = first;
    // With no more priority than it takes, so that a program's own may come later.
    for (const int priority : {0, 1, 100, 255}) {
      c10::SetCPUAllocator(this, static_cast<uint8_t>(priority));
      if (c10::GetCPUAllocator() == this) return;
    }
  }

  c10::DataPtr allocate(size_t size) override {
    asked_ = true;
    std::shared_ptr<HostAccount> account = account_of_thread();
    c10::DataPtr inner = inner_.load()->allocate(size);
    void* const data = inner.get();
    if (!account || data == nullptr || inner.get_context() != data) return inner;
    const auto bytes = static_cast<int64_t>(size);
    account->add(bytes);
    {
      Shard& shard = shard_of(data);
      const std::lock_guard<std::mutex> lock(shard.mutex);
      shard.blocks[data] = Block{std::move(inner), bytes, std::move(account)};
    }
    return {data, data, &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t size) const override {
    inner_.load()->copy_data(to, from, size);
  }

  const HostAccount* owner(void* data) {
    Shard& shard = shard_of(data);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.blocks.find(data);
    return found == shard.blocks.end() ? nullptr : found->second.account.get();
  }

  static void give_back(void* data) {
    if (data == nullptr) return;
    Block block;
    bool counted = false;
    {
      Shard& shard = get().shard_of(data);
      const std::lock_guard<std::mutex> lock(shard.mutex);
      const auto found = shard.blocks.find(data);
      if (found != shard.blocks.end()) {
        counted = true;
        block = std::move(found->second);
        shard.blocks.erase(found);
      }
    }
    if (!counted) return get().inner_.load()->raw_deallocate(data);
    block.account->add(-block.bytes);
  }

 private:
  struct Block {
    c10::DataPtr inner;
    int64_t bytes = 0;
    std::shared_ptr<HostAccount> account;
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, Block> blocks;
  };

  CountingAllocator() = default;
  Shard& shard_of(void* data) {
    return shards_[(reinterpret_cast<uintptr_t>(data) >> 6) % shards_.size()];
  }

  std::mutex install_mutex_;
  std::atomic<c10::Allocator*> inner_ = nullptr;
  std::atomic<bool> asked_ = false;
  std::array<Shard, 16> shards_;
};

bool HostAccount::counts(const c10::Storage& storage) const {
  return CountingAllocator::get().owner(storage.mutable_data_ptr().get()) == this;
}

/// Of a device whose allocator counts.
class DeviceAccount final : public MemoryAccount {
 public:
  explicit DeviceAccount(c10::Device device) : device_(device) {}

  int64_t held() const override { return stats().current; }
  int64_t take_peak() override {
    const int64_t peak = stats().peak;
    c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
    return peak;
  }
  bool counts(const c10::Storage&) const override { return true; }

 private:
  /// Of large and small blocks together. An allocator knows no device before the first tensor.
  c10::CachingAllocator::Stat stats() const {
    auto* const allocator = c10::getDeviceAllocator(device_.type());
    if (!allocator->initialized()) return {};
    return allocator->getDeviceStats(device_.index()).allocated_bytes[0];
  }

  const c10::Device device_;
};

}  // namespace

std::shared_ptr<MemoryAccount> MemoryAccount::of_this_thread(c10::Device device) {
  if (!device.is_cpu()) return std::make_shared<DeviceAccount>(device);
  std::shared_ptr<HostAccount>& account = account_of_thread();
  CountingAllocator::get().install();
  if (!account) account = std::make_shared<HostAccount>();
  return account;
}

void MemoryAccount::join(const std::shared_ptr<MemoryAccount>& account) {
  std::shared_ptr<HostAccount>& own = account_of_thread();
  if (!own) own = std::dynamic_pointer_cast<HostAccount>(account);
}

}  // namespace oslo
