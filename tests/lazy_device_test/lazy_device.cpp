#include "tests/lazy_device_test/lazy_device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace oslo::test {
namespace {

struct Line {
  std::deque<std::function<void()>> steps;
  uint64_t added = 0, done = 0;
};

struct Event {
  int64_t stream = 0;
  uint64_t place = 0;  ///< how much of the stream it waits for
};

/// Memory of the device.
struct Block {
  int64_t bytes = 0;
  int64_t thread = 0;  ///< that asked for it
};

/// Of this thread alone: its id may have been another one's, too.
int64_t number_of_thread() {
  static std::atomic<int64_t> threads = 0;
  static thread_local const int64_t number = ++threads;
  return number;
}

/// Every stream of the device; ranks are threads and share it.
struct Lines {
  std::recursive_mutex mutex;
  std::map<int64_t, Line> of;
  size_t undone = 0;
  int64_t pool = 0;
  std::map<const void*, std::set<int64_t>> told;
  std::set<const void*> pinned;
  std::map<const void*, Block> on_device;

  uint64_t add(int64_t stream, std::function<void()> step) {
    Line& line = of[stream];
    line.steps.push_back(std::move(step));
    return ++line.added;
  }
  void run(int64_t stream, uint64_t place) {
    while (of[stream].done < place) {
      const auto step = std::move(of[stream].steps.front());
      of[stream].steps.pop_front();
      ++of[stream].done;
      step();
    }
  }
};

Lines& lines() {
  static auto* const all = new Lines;  // threads may outlive main
  return *all;
}

thread_local int64_t current_stream = 0;

c10::Stream stream_of(int64_t number) {
  return c10::Stream(c10::Stream::UNSAFE, kLazy, number);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return kLazy; }
  c10::Device getDevice() const override { return kLazy; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream_of(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    const std::lock_guard lock(lines().mutex);
    return stream_of(1000 + ++lines().pool);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(std::exchange(current_stream, stream.id()));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    const std::lock_guard lock(lines().mutex);
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {stream.id(), lines().of[stream.id()].added};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const std::lock_guard lock(lines().mutex);
    lines().add(stream.id(),
                [of = *static_cast<Event*>(event)] { lines().run(of.stream, of.place); });
  }
  bool queryEvent(void* event) const override {
    const std::lock_guard lock(lines().mutex);
    const auto* of = static_cast<Event*>(event);
    return of == nullptr || lines().of[of->stream].done >= of->place;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const std::lock_guard lock(lines().mutex);
    const auto* of = static_cast<Event*>(event);
    lines().run(of->stream, of->place);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    const std::lock_guard lock(lines().mutex);
    lines().told[data.get()].insert(stream.id());
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

/// Memory of the device, or of the host, pinned. It is the host's in truth.
class Memory final : public c10::Allocator {
 public:
  explicit Memory(bool pinned) : pinned_(pinned) {}
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = std::malloc(bytes + 1);
    const std::lock_guard lock(lines().mutex);
    lines().told.erase(data);
    if (pinned_) {
      lines().pinned.insert(data);
    } else {
      lines().pinned.erase(data);
      lines().on_device[data] = {static_cast<int64_t>(bytes), number_of_thread()};
    }
    return {data, data, raw_deleter(), pinned_ ? c10::Device(c10::kCPU) : kLazy};
  }
  c10::DeleterFnPtr raw_deleter() const override { return give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void give_back(void* data) {
    {
      const std::lock_guard lock(lines().mutex);
      lines().on_device.erase(data);
    }
    std::free(data);
  }

  bool pinned_;
};

Memory& device_memory() {
  static Memory memory(false);
  return memory;
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static Memory memory(true);
    return &memory;
  }
};

[[maybe_unused]] const bool kRegistered = [] {
  c10::register_privateuse1_backend("lazy");
  c10::SetAllocator(c10::kPrivateUse1, &device_memory());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

/// The same memory as the host has it.
at::Tensor in_truth(const at::Tensor& tensor) {
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const std::lock_guard lock(lines().mutex);
  ++lines().undone;
  const uint64_t place = lines().add(current_stream, [from, to] {
    in_truth(to).copy_(in_truth(from));
    --lines().undone;
  });
  bool late = non_blocking;
  for (const at::Tensor& end : {from, to}) {
    late &= !end.is_cpu() || lines().pinned.count(end.storage().data_ptr().get()) > 0;
  }
  if (!late) lines().run(current_stream, place);
  return to;
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &device_memory(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &device_memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           type.value_or(at::kFloat));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
}

}  // namespace

size_t undone_copies() {
  const std::lock_guard lock(lines().mutex);
  return lines().undone;
}

void finish_current_stream() {
  const std::lock_guard lock(lines().mutex);
  lines().run(current_stream, lines().of[current_stream].added);
}

void finish_all_streams() {
  const std::lock_guard lock(lines().mutex);
  for (const auto& [stream, line] : lines().of) lines().run(stream, line.added);
}

int64_t device_bytes() {
  const std::lock_guard lock(lines().mutex);
  int64_t sum = 0;
  for (const auto& [data, block] : lines().on_device) sum += block.bytes;
  return sum;
}

int64_t device_bytes_of_this_thread() {
  const std::lock_guard lock(lines().mutex);
  int64_t sum = 0;
  for (const auto& [data, block] : lines().on_device) {
    if (block.thread == number_of_thread()) sum += block.bytes;
  }
  return sum;
}

size_t streams_told(const at::Tensor& tensor) {
  const std::lock_guard lock(lines().mutex);
  return lines().told[tensor.storage().data_ptr().get()].size();
}

}  // namespace oslo::test
