// Calls that stop in the middle, on threads of their own.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "parallelizers/memory/saved_tensors.h"
#include "parallelizers/pipeline/run/call_thread.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace {

using ::testing::ElementsAre;

TEST(CallThread, CallsTakeTurnsWithWhoeverResumesThem) {
  std::vector<std::string> seen;
  CallThread a, b;
  const auto counts = [&](CallThread& thread, const std::string& name) {
    thread.start([&seen, &thread, name] {
      for (int i = 0; i < 3; ++i) {
        seen.push_back(name + std::to_string(i));
        if (i < 2) thread.pause();
      }
    });
  };
  counts(a, "a");
  counts(b, "b");
  EXPECT_TRUE(seen.empty());  // nothing begins by itself
  a.resume();
  a.resume();
  b.resume();
  a.resume();
  EXPECT_FALSE(a.busy());
  EXPECT_TRUE(b.busy());
  counts(a, "c");  // the next call on the same thread
  a.resume();
  b.resume();
  b.resume();
  EXPECT_THAT(seen, ElementsAre("a0", "a1", "b0", "a2", "c0", "b1", "b2"));
}

TEST(CallThread, WhatACallThrowsItsResumerCatches) {
  CallThread thread;
  thread.start([&] {
    thread.pause();
    fail("no more data");
  });
  thread.resume();
  EXPECT_EQ(error_of([&] { thread.resume(); }), "no more data");
  EXPECT_FALSE(thread.busy());
}

TEST(CallThread, ACallThatIsGivenUpUnwindsEvenWhereItCatchesErrors) {
  auto held = std::make_shared<int>(0);
  {
    CallThread thread;
    thread.start([&thread, held] {
      try {
        thread.pause();
      } catch (const std::exception&) {
        *held = 1;
      }
      *held = 2;
    });
    thread.resume();
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(*held, 0);
  EXPECT_EQ(held.use_count(), 1);
}

/// A program that swallows everything comes to its end, not to where it would have stopped.
TEST(CallThread, ACallThatIsGivenUpDoesNotStopAgain) {
  int stops = 0;
  {
    CallThread thread;
    thread.start([&] {
      for (int i = 0; i < 3; ++i) {
        try {
          thread.pause();
        } catch (...) {
          ++stops;
        }
      }
    });
    thread.resume();
  }
  EXPECT_EQ(stops, 3);
}

TEST(CallThread, ACallRunsInTheModesOfItsStarter) {
  const int threads = at::get_num_threads();
  int saved = 0;
  CallThread thread;
  const auto call = [&] {
    EXPECT_FALSE(torch::GradMode::is_enabled());
    EXPECT_EQ(at::get_num_threads(), 3);
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    thread.pause();
    const torch::AutoGradMode records(true);
    torch::ones({2}).requires_grad_().exp();
  };
  {
    const torch::NoGradGuard no_grad;
    const SavedTensorScope scope([&](const at::Tensor&) -> UnpackSavedTensor {
      ++saved;
      return {};
    });
    at::set_num_threads(3);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    thread.start(call);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::set_num_threads(threads);
  }
  thread.resume();
  EXPECT_TRUE(torch::GradMode::is_enabled());
  thread.resume();
  EXPECT_EQ(saved, 1);
}

}  // namespace
}  // namespace oslo::test
