#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>

#include <memory>
#include <mutex>
#include <string_view>

#include "tests/support/seeded.h"

namespace oslo::test {

/// Ranks that are threads share LibTorch's generator. While this lives, what its thread draws by
/// `bernoulli_`, as every dropout does, comes from a generator of its own, seeded so: as if the
/// thread were a process after `at::manual_seed(seed)`. One in a thread at a time.
class OwnDraws {
 public:
  explicit OwnDraws(uint64_t seed) {
    engine() = at::mt19937(seed);
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}));
  }
  ~OwnDraws() { at::removeCallback(handle_); }
  OwnDraws(const OwnDraws&) = delete;
  OwnDraws& operator=(const OwnDraws&) = delete;

 private:
  struct Lock : at::ObserverContext {
    std::unique_lock<std::mutex> lock{random_mutex()};
    at::mt19937 shared;
  };

  static at::mt19937& engine() {
    static thread_local at::mt19937 own;
    return own;
  }
  static at::CPUGeneratorImpl& generator() {
    return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (std::string_view(function.name()) != "aten::bernoulli_") return nullptr;
    auto lock = std::make_unique<Lock>();
    lock->shared = generator().engine();
    generator().set_engine(engine());
    return lock;
  }
  static void end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
    auto* const lock = static_cast<Lock*>(context);
    if (lock == nullptr) return;
    engine() = generator().engine();
    generator().set_engine(lock->shared);
  }

  at::CallbackHandle handle_;
};

}  // namespace oslo::test
