// What constructing and filling allocate.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <fstream>

#include "deferred_models.h"

namespace deferred_models {
namespace {

/// Notes what this thread takes from the CPU's allocator.
struct Allocations final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (bytes > 0 && device.is_cpu()) sizes.push_back(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::vector<int64_t> sizes;
};

std::vector<int64_t> allocations_of(const std::function<void()>& body) {
  const auto noted = std::make_shared<Allocations>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, noted);
  body();
  return noted->sizes;
}

/// veScale's case: 6 over 4 ranks, of which its ceiling leaves one none; parts here are balanced.
TEST(DeferredMemory, NoneWhileConstructingThenOneOfTheLocalSize) {
  for (const bool normal : {true, false}) {
    oslo::run_as_threads(4, [&](oslo::World world) {
      const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(4));
      const auto make = [&] { return normal ? torch::randn({4, 6, 16}) : torch::rand({4, 6, 16}); };
      const Tensor whole = make_seeded(5, make);
      Tensor tensor;
      EXPECT_THAT(allocations_of([&] {
                    tensor = make_seeded(5, [&] {
                      const oslo::DeferredInit guard;
                      return make();
                    });
                  }),
                  testing::IsEmpty());
      const auto layout = std::make_shared<oslo::Layout>(
          oslo::make_layout(mpu.tensor_mesh(), {oslo::Placement::shard(1)}, whole.sizes()));
      EXPECT_THAT(allocations_of([&] {
                    const oslo::DeferredInit guard;
                    oslo::mark_parameter(tensor, layout, "tensor");
                  }),
                  testing::IsEmpty());
      const auto allocated = allocations_of([&] { oslo::fill(tensor); });
      const int64_t rows = world.rank() < 2 ? 2 : 1;
      EXPECT_EQ(allocated.front(), 4 * rows * 16 * 4);
      // Behind it come strips of what the rows lie between.
      EXPECT_TRUE(torch::equal(oslo::local_tensor(tensor), oslo::local_part(whole, *layout)));
    });
  }
}

TEST(DeferredMemory, ALayerInOneAllocationEach) {
  torch::nn::Linear linear{nullptr};
  EXPECT_THAT(allocations_of([&] {
                const oslo::DeferredInit guard;
                linear = torch::nn::Linear(512, 3000);
              }),
              testing::IsEmpty());
  EXPECT_THAT(allocations_of([&] { oslo::materialize(linear); }),
              testing::ElementsAre(512 * 3000 * 4, 3000 * 4));
}

TEST(DeferredMemory, RowsOfARankInOneAllocation) {
  oslo::run_as_threads(2, [&](oslo::World world) {
    auto model = make_seeded(5, [] {
      const oslo::DeferredInit guard;
      return torch::nn::Sequential(torch::nn::Linear(2048, 3000));
    });
    oslo::InitializeOptions how;
    how.world = world;
    const auto config = oslo::Config::parse(
        R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2},
            "plan": {"0": "column"}})");
    std::vector<int64_t> large;
    for (const int64_t bytes : allocations_of([&] { oslo::initialize(model, config, how); })) {
      if (bytes >= 1 << 20) large.push_back(bytes);
    }
    EXPECT_THAT(large, testing::ElementsAre(2048 * 1500 * 4));
  });
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

/// LiBai's first example: 82 GB, of which a rank of 8 has 10.
TEST(DeferredMemory, LibaisFirstExampleIsConstructedForEightRanks) {
  const int64_t before = resident_bytes();
  const oslo::MPU mpu(oslo::World::fake(3, 8), oslo::MpuOptions().tensor_parallel_size(8));
  const oslo::DeferredInit guard;
  const oslo::nn::Linear layer(oslo::nn::LinearOptions(2048, 10'000'000).parallel("col"), mpu);
  EXPECT_EQ(layer->weight.sizes(), (std::vector<int64_t>{1'250'000, 2048}));
  EXPECT_TRUE(oslo::is_deferred(layer->weight));
  EXPECT_LT(resident_bytes() - before, 64 << 20);
}

}  // namespace
}  // namespace deferred_models
