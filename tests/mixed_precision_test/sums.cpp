// Sums over ranks of half types are added up in fp32, and rounded once.
#include "mpu/collectives/collectives.h"
#include "parallelizers/placement/carrier/access.h"
#include "tests/mixed_precision_test/cases.h"

namespace oslo::test {
namespace {

/// 256 + 1 is 256 in bf16, whoever adds next.
TEST(MixedPrecisionSums, HalfAddendsOfRanksAreRoundedOnce) {
  for (const Transport transport : {Transport::shared_memory, Transport::gloo}) {
    run_as_threads(3, [&](World world) {
      const MPU mpu(world, MpuOptions().tensor_parallel_size(3).backend(transport));
      const auto group = mpu.group("tensor");
      const torch::Tensor own = torch::full({5}, world.rank() == 0 ? 256.0 : 1.0, torch::kBFloat16);
      const torch::Tensor expected = torch::full({5}, 258.0, torch::kBFloat16);
      expect_same(reduce_from(own.clone(), group), expected, "all-reduce");
      expect_same(group->start_all_reduce(own.clone()).wait(), expected, "started");
      expect_same(reduce_and_scatter(own.repeat(3), group, 0, {5, 5, 5}), expected, "scatter");
    });
  }
}

/// Acceptance S5.
TEST(MixedPrecisionSums, TheLargestOfATensorCutOnTwoAxesGivesOneScale) {
  run_as_threads(4, [](World world) {
    const MPU mpu(world, MpuOptions().axes({{"row", 2}, {"column", 2}}));
    const torch::Tensor whole = make_seeded(5, [] { return torch::randn({5, 7}); });
    for (const torch::Dtype type : {torch::kFloat, torch::kBFloat16}) {
      const torch::Tensor cut = distribute(whole.to(type), mpu.mesh({"row", "column"}),
                                           {Placement::shard(0), Placement::shard(1)});
      const torch::Tensor largest = full_tensor(cut.abs().amax());
      expect_same(largest, whole.to(type).abs().amax(), "amax");
      const torch::Tensor scale = 448.0 / largest.to(torch::kFloat);
      expect_same(scale, 448.0 / whole.to(type).abs().amax().to(torch::kFloat), "scale");
    }
  });
}

}  // namespace
}  // namespace oslo::test
