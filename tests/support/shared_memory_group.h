#pragma once

#include <gmock/gmock.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "mpu/transport/shared_memory/backend.h"
#include "mpu/transport/shared_memory/collective/member.h"

namespace oslo::test {

using ShmOptions = SharedMemoryBackend::Options;

inline c10::intrusive_ptr<ShmOptions> shm_options(
    const std::string& group, std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
  auto options = c10::make_intrusive<ShmOptions>(timeout);
  options->group_name = group;
  return options;
}

/// Runs `body` once per rank, each a thread; returns what each threw, empty for those that did not.
inline std::vector<std::string> on_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// The same with a shared memory group of them, of small chunks, so that small tensors need many.
/// `adjust` may change the options.
inline std::vector<std::string> on_group(
    int ranks, const std::function<void(SharedMemoryBackend&, int)>& body,
    const std::function<void(ShmOptions&, int)>& adjust = [](ShmOptions&, int) {}) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  return on_threads(ranks, [&](int rank) {
    auto options = shm_options("test");
    options->chunk_bytes = options->ring_bytes = 4096;
    adjust(*options, rank);
    auto group = c10::make_intrusive<SharedMemoryBackend>(store, rank, ranks, options);
    body(*group, rank);
  });
}

/// The same, where no rank may throw.
inline void each_rank(int ranks, const std::function<void(SharedMemoryBackend&, int)>& body) {
  using namespace shared_memory;
  // One mapping for all, so that ThreadSanitizer sees what they do to each other.
  const SegmentLayout layout(ranks, 4096, 4096);
  const auto memory = Segment::create(Segment::Kind::anonymous, layout.bytes);
  for (int rank = 0; rank < ranks; ++rank) Member::join(*memory, layout, rank);
  const auto adjust = [&](ShmOptions& options, int) { options.memory = memory; };
  EXPECT_THAT(on_group(ranks, body, adjust), ::testing::Each(::testing::IsEmpty()));
}

}  // namespace oslo::test
