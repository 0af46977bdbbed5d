#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>
#include <utility>

namespace oslo::test {

/// Ranks that are threads share LibTorch's generator. While this lives, what its thread draws by
/// `bernoulli_`, as every dropout does, or `normal_`, as randn_like does, comes from a generator of
/// its own, seeded so: as if the thread were a process after `at::manual_seed(seed)`; with
/// `each_anew`, as if it were seeded before every draw, by the next number each time. One in a
/// thread at a time.
class OwnDraws {
 public:
  explicit OwnDraws(uint64_t seed, bool each_anew = false)
      : before_(std::exchange(source(),
                              {at::make_generator<at::CPUGeneratorImpl>(seed), seed, each_anew})) {
    static const Interception of_all_threads;
  }
  ~OwnDraws() { source() = std::move(before_); }
  OwnDraws(const OwnDraws&) = delete;
  OwnDraws& operator=(const OwnDraws&) = delete;

 private:
  /// LibTorch keeps it for tests.
  static constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

  struct Interception {
    torch::Library others{torch::Library::IMPL, "_", kKey, __FILE__, __LINE__};
    torch::Library draws{torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__};
    Interception() {
      others.fallback(torch::CppFunction::makeFallthrough());
      draws.impl("bernoulli_.float", &draw);
      draws.impl("normal_", &draw_normal);
    }
  };

  struct Source {
    at::Generator generator;
    uint64_t next_seed = 0;
    bool each_anew = false;
  };

  static Source& source() {
    static thread_local Source own;
    return own;
  }

  static at::Tensor& draw(at::Tensor& self, double p, std::optional<at::Generator> generator) {
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("aten::bernoulli_", "float")
            .typed<at::Tensor&(at::Tensor&, double, std::optional<at::Generator>)>();
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    return op.call(self, p, generator ? generator : own_generator());
  }

  static at::Tensor& draw_normal(at::Tensor& self, double mean, double deviation,
                                 std::optional<at::Generator> generator) {
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("aten::normal_", "")
            .typed<at::Tensor&(at::Tensor&, double, double, std::optional<at::Generator>)>();
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    return op.call(self, mean, deviation, generator ? generator : own_generator());
  }

  static at::Generator own_generator() {
    Source& own = source();
    if (own.each_anew) own.generator.set_current_seed(own.next_seed++);
    return own.generator;
  }

  Source before_;
  c10::impl::IncludeDispatchKeyGuard included_{kKey};
};

}  // namespace oslo::test
