// Which device a rank gets, and what is wrong with a model's. What a host has is made up here.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "mpu/transport/backends/cuda_support.h"
#include "mpu/world/local_device.h"
#include "oslo_cpp/initialize/checks/check_devices.h"
#include "oslo_cpp/oslo.h"
#include "tests/support/error_of.h"
#include "tests/support/errors_of.h"

namespace oslo {
namespace {

using test::error_of;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(LocalDevice, IsTheRanksNumberOnItsHost) {
  const std::vector<std::string> first{"A", "B"}, second{"C", "D", "E"};
  EXPECT_THAT(share_out_devices(
                  {{0, 2, first}, {1, 2, first}, {0, 3, second}, {1, 3, second}, {2, 3, second}}),
              ElementsAre(0, 1, 0, 1, 2));
  EXPECT_THAT(share_out_devices({{0, 1, {"A"}}}), ElementsAre(0));
}

TEST(LocalDevice, IsTheOnlyOneThatALauncherShows) {
  EXPECT_THAT(share_out_devices({{0, 3, {"A"}}, {1, 3, {"B"}}, {2, 3, {"C"}}}),
              ElementsAre(0, 0, 0));
}

TEST(LocalDevice, IsMissingWhereRanksAreMore) {
  test::expect_contains(
      error_of([] {
        share_out_devices({{0, 3, {"A", "B"}}, {1, 3, {"A", "B"}}, {2, 3, {"A", "B"}}});
      }),
      {"rank 2", "number 2 of 3 ranks", "2 GPUs", "'cuda:0'"});
  test::expect_contains(error_of([] {
                          share_out_devices({{0, 2, {"A"}}, {1, 2, {"A"}}});
                        }),
                        {"rank 1", "1 GPU,"});
  test::expect_contains(error_of([] {
                          share_out_devices({{0, 2, {"A"}}, {1, 2, {}}});
                        }),
                        {"rank 1 sees no GPU", "CUDA_VISIBLE_DEVICES"});
}

TEST(LocalDevice, CpuIsAlwaysThere) {
  run_as_threads(
      3, [](World world) { EXPECT_EQ(local_device(world, "cpu"), c10::Device(c10::kCPU)); });
  EXPECT_GT(memory_held(c10::kCPU), 10 << 20);
}

TEST(LocalDevice, UnknownNamesAreRefusedOnEveryRank) {
  for (const char* name : {"gpu", "cuda:", "cuda:-1", "", "meta", "mps"}) {
    EXPECT_THAT(test::errors_of(2, [&](World world) { local_device(world, name); }),
                Each(AllOf(HasSubstr(c10::str("device '", name, "'")), HasSubstr("'cuda:0'"))));
  }
}

TEST(LocalDevice, OneRankThatAsksForAnotherDoesNotGoAlone) {
  EXPECT_THAT(test::errors_of(
                  3, [](World world) { local_device(world, world.rank() == 1 ? "tpu" : "cpu"); }),
              Each(HasSubstr("rank 1")));
}

TEST(LocalDevice, WhyThereIsNone) {
  if (at::hasCUDA()) GTEST_SKIP() << "there is one";
  // The CPU build has no library for it; the CUDA build has, and no driver.
  const char* why = cuda_support() == nullptr ? "-DOSLO_CUDA=ON" : "driver";
  for (const char* name : {"cuda", "cuda:1"}) {
    EXPECT_THAT(test::errors_of(2, [&](World world) { local_device(world, name); }),
                Each(AllOf(HasSubstr(why), HasSubstr("docs/gpu.md"))));
  }
}

TEST(ModelDevices, OneDeviceAndTheRanksOwn) {
  const c10::Device cpu(c10::kCPU), meta(c10::kMeta), first(c10::kCUDA, 0), second(c10::kCUDA, 1);
  check_devices({{"a", cpu}, {"b", cpu}, {"c", meta}}, cpu);
  check_devices({}, cpu);
  check_devices({{"a", second}, {"c", meta}, {"b", second}}, second);
  test::expect_contains(error_of([&] {
                          check_devices({{"a", first}, {"h.0.b", cpu}}, first);
                        }),
                        {"h.0.b is on cpu", "a on cuda:0", "model->to(oslo::local_device"});
  test::expect_contains(error_of([&] {
                          check_devices({{"a", first}, {"b", second}}, first);
                        }),
                        {"b is on cuda:1"});
  test::expect_contains(error_of([&] {
                          check_devices({{"a", first}, {"b", first}}, second);
                        }),
                        {"the model is on cuda:0", "this rank's device is cuda:1"});
}

}  // namespace
}  // namespace oslo
