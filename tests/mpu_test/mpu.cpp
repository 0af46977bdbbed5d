// Groups of the mesh: acceptance cases G1 to G4, and meshes of a dry run.
#include "mpu/grid/mpu.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <set>
#include <thread>

#include "parallelizers/placement/layout/gather_report.h"
#include "tests/support/error_of.h"

namespace oslo {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Groups = std::vector<std::vector<int>>;

const std::vector<std::string> kAxes = {"tensor", "pipeline", "data", "model"};

RankGrid grid_of(int data, int tensor, int pipeline, RankOrder order = RankOrder::pp_dp_tp) {
  return RankGrid::of_sizes(data, tensor, pipeline, order);
}

// A loop whose reasons never repeat must not fill the memory.
TEST(GatherReport, TellsSoManyReasonsApartAndCountsAll) {
  GatherReport report;
  constexpr int64_t kCalls = 3000;
  for (int64_t i = 0; i < kCalls; ++i) report.record("aten::view", c10::str("reason ", i), 8);
  report.record("aten::view", "reason 3", 8);
  EXPECT_EQ(report.entries().size(), GatherReport::kMostEntries + 1);
  EXPECT_EQ(report.entries()[3].calls, 2);
  EXPECT_EQ(report.entries().back().reason, GatherReport::kFurther);
  EXPECT_EQ(report.calls(), kCalls + 1);
  report.clear();
  report.record("aten::view", "reason 3", 8);
  EXPECT_EQ(report.entries().size(), 1u);
}

TEST(RankGrid, TensorFourPipelineTwo) {  // G1
  const RankGrid grid = grid_of(1, 4, 2);
  EXPECT_EQ(grid.groups("tensor"), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(grid.groups("pipeline"), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(grid.groups("data"), (Groups{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(grid.groups("model"), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

TEST(RankGrid, BothRankOrders) {  // G2
  const RankGrid adjacent_stages = grid_of(2, 2, 2);
  EXPECT_EQ(adjacent_stages.groups("data"), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(adjacent_stages.groups("pipeline"), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(adjacent_stages.groups("model"), (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  const RankGrid adjacent_replicas = grid_of(2, 2, 2, RankOrder::dp_pp_tp);
  EXPECT_EQ(adjacent_replicas.groups("data"), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(adjacent_replicas.groups("pipeline"), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(adjacent_replicas.groups("model"), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  for (const RankGrid& grid : {adjacent_stages, adjacent_replicas}) {
    EXPECT_EQ(grid.groups("tensor"), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  }
}

int members_of(const RankGrid& grid, const std::string& axis) {
  if (axis == "model") return grid.size("tensor") * grid.size("pipeline");
  return grid.size(axis);
}

/// Every rank in exactly one group, all groups of one size; and one rank of a data group and one of
/// a model group have exactly one rank in common.
void expect_cover(const RankGrid& grid) {
  for (const std::string& axis : kAxes) {
    std::set<int> covered;
    for (const std::vector<int>& group : grid.groups(axis)) {
      EXPECT_EQ(static_cast<int>(group.size()), members_of(grid, axis)) << axis;
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end())) << axis;
      for (const int rank : group) EXPECT_TRUE(covered.insert(rank).second) << axis << " " << rank;
    }
    EXPECT_EQ(static_cast<int>(covered.size()), grid.size()) << axis;
    EXPECT_EQ(*covered.begin(), 0);
    EXPECT_EQ(*covered.rbegin(), grid.size() - 1);
  }
  for (const auto& data : grid.groups("data")) {
    for (const auto& model : grid.groups("model")) {
      std::vector<int> common;
      std::set_intersection(data.begin(), data.end(), model.begin(), model.end(),
                            std::back_inserter(common));
      EXPECT_EQ(common.size(), 1U);
    }
  }
}

TEST(RankGrid, EveryFactorizationCoversDisjointly) {  // G3
  int grids = 0;
  for (int world = 1; world <= 12; ++world) {
    for (int tensor = 1; tensor <= world; ++tensor) {
      for (int pipeline = 1; pipeline * tensor <= world; ++pipeline) {
        if (world % (tensor * pipeline) != 0) continue;
        for (const RankOrder order : {RankOrder::pp_dp_tp, RankOrder::dp_pp_tp}) {
          SCOPED_TRACE(c10::str("world ", world, " tensor ", tensor, " pipeline ", pipeline));
          const RankGrid grid = MpuOptions()
                                    .tensor_parallel_size(tensor)
                                    .pipeline_parallel_size(pipeline)
                                    .rank_order(order)
                                    .grid(world);
          EXPECT_EQ(grid.size("data"), world / tensor / pipeline);
          expect_cover(grid);
          ++grids;
        }
      }
    }
  }
  EXPECT_EQ(grids,
            2 * 74);  // 1, 3, 3, 6, 3, 9, 3, 10, 6, 9, 3, 18 ways to write 1 to 12 as three factors
}

TEST(RankGrid, AnUnknownAxisIsNamed) {
  EXPECT_THAT(error_of([] { grid_of(1, 2, 1).groups("expert"); }), HasSubstr("expert"));
}

TEST(MpuOptions, SizesThatDoNotFitNameFactorsProductAndTheNearest) {  // G4
  EXPECT_THAT(error_of([] { MpuOptions().tensor_parallel_size(3).grid(8); }),
              AllOf(HasSubstr("tensor 3 x pipeline 1 x data 2 = 6 ranks"),
                    HasSubstr("the world has 8"), HasSubstr("tensor 2 x pipeline 1 x data 4")));
  EXPECT_THAT(error_of([] { MpuOptions().tensor_parallel_size(2).data_parallel_size(3).grid(8); }),
              HasSubstr("tensor 2 x pipeline 1 x data 3 = 6 ranks"));
  EXPECT_THAT(
      error_of([] { MpuOptions().tensor_parallel_size(4).pipeline_parallel_size(4).grid(8); }),
      HasSubstr("= 16 ranks, but the world has 8"));
  EXPECT_THAT(error_of([] { MpuOptions().tensor_parallel_size(0).grid(8); }),
              HasSubstr("tensor_parallel_size is 0"));
  EXPECT_THAT(error_of([] { MpuOptions().pipeline_parallel_size(-2).grid(8); }),
              HasSubstr("pipeline_parallel_size is -2"));
  EXPECT_THAT(error_of([] { MpuOptions().data_parallel_size(0).grid(8); }),
              HasSubstr("data_parallel_size is 0"));
}

TEST(MpuOptions, AbsurdSizesDoNotWrapAround) {
  EXPECT_THAT(error_of([] {
                MpuOptions().tensor_parallel_size(1 << 16).pipeline_parallel_size(1 << 16).grid(8);
              }),
              HasSubstr("= 4294967296 ranks"));
  EXPECT_NE(error_of([] {
              MpuOptions()
                  .tensor_parallel_size(1 << 30)
                  .pipeline_parallel_size(1 << 30)
                  .data_parallel_size(1 << 30)
                  .grid(8);
            }),
            "");
}

TEST(Mpu, SizesThatDoNotFitAreRefusedOnEveryRank) {  // G4
  run_as_threads(3, [](World world) {
    EXPECT_THAT(error_of([&] { MPU(world, MpuOptions().tensor_parallel_size(2)); }),
                HasSubstr("= 2 ranks, but the world has 3"));
    EXPECT_THAT(error_of([&] { MPU(world, MpuOptions().tensor_parallel_size(-1)); }),
                HasSubstr("tensor_parallel_size is -1"));
    // None of it left the ranks waiting for each other or out of step.
    EXPECT_EQ(MPU(world, MpuOptions().tensor_parallel_size(3)).tensor_group()->exchange(1).size(),
              3U);
  });
}

TEST(Mpu, AllReduceOfRankIdsOverTensorGroups) {  // G1
  run_as_threads(8, [](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(4).pipeline_parallel_size(2));
    const int rank = world.rank();
    const at::Tensor sum = mpu.tensor_group()->all_reduce(at::full({1}, rank, at::kLong));
    EXPECT_EQ(sum.item<int64_t>(), rank < 4 ? 6 : 22);
    EXPECT_EQ(mpu.get_tensor_parallel_rank(), rank % 4);
    EXPECT_EQ(mpu.get_pipeline_parallel_rank(), rank / 4);
    EXPECT_EQ(mpu.get_data_parallel_world_size(), 1);
    EXPECT_EQ(mpu.is_pipeline_first_stage(), rank < 4);
    EXPECT_EQ(mpu.is_pipeline_last_stage(), rank >= 4);
    EXPECT_EQ(mpu.get_model_parallel_world_size(), 8);
    EXPECT_EQ(mpu.get_pipeline_parallel_ranks(), (std::vector<int>{rank % 4, rank % 4 + 4}));
    EXPECT_EQ(mpu.get_tensor_parallel_groups(), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
    EXPECT_EQ(mpu.get_tensor_parallel_group()->getSize(), 4);
    EXPECT_EQ(mpu.get_tensor_parallel_group()->getRank(), rank % 4);
  });
}

TEST(Mpu, GroupsReachTheirMembersInBothOrders) {  // G2
  run_as_threads(8, [](World world) {
    for (const RankOrder order : {RankOrder::pp_dp_tp, RankOrder::dp_pp_tp}) {
      const MPU mpu(
          world, MpuOptions().tensor_parallel_size(2).pipeline_parallel_size(2).rank_order(order));
      for (const auto& group :
           {mpu.data_group(), mpu.tensor_group(), mpu.pipeline_group(), mpu.model_group()}) {
        const std::vector<int64_t> met = group->exchange(world.rank());
        EXPECT_EQ(std::vector<int>(met.begin(), met.end()), group->ranks()) << group->name();
        EXPECT_EQ(group->ranks()[group->rank()], world.rank()) << group->name();
      }
    }
  });
}

TEST(Mpu, AloneEveryGroupHasOneRankAndMovesNothing) {
  const MPU mpu(World::alone());
  for (const auto& group :
       {mpu.data_group(), mpu.tensor_group(), mpu.pipeline_group(), mpu.model_group()}) {
    EXPECT_EQ(group->ranks(), std::vector<int>{0});
    const at::Tensor tensor = at::ones({3});
    EXPECT_TRUE(group->all_reduce(tensor).is_same(tensor));
    EXPECT_EQ(group->ledger().total(), Traffic());
  }
  EXPECT_TRUE(mpu.is_pipeline_first_stage());
  EXPECT_TRUE(mpu.is_pipeline_last_stage());
}

TEST(Mpu, ADryRunKnowsAMeshOf4096Ranks) {
  for (const int rank : {0, 1234, 4095}) {
    const MPU mpu(World::fake(rank, 4096),
                  MpuOptions().tensor_parallel_size(8).pipeline_parallel_size(16));
    EXPECT_EQ(mpu.get_data_parallel_world_size(), 32);
    EXPECT_EQ(mpu.get_tensor_parallel_rank(), rank % 8);
    EXPECT_EQ(mpu.get_data_parallel_rank(), rank / 8 % 32);
    EXPECT_EQ(mpu.get_pipeline_parallel_rank(), rank / 8 / 32);
    EXPECT_EQ(mpu.get_tensor_parallel_groups().size(), 512U);

    Group& group = *mpu.tensor_group();
    const std::vector<int64_t> sizes = {3, 3, 3, 3, 2, 2, 2, 2};
    const int64_t own = sizes[group.rank()];
    EXPECT_EQ(group.all_reduce(at::zeros({4, 6})).sizes(), at::IntArrayRef({4, 6}));
    EXPECT_EQ(group.all_gather(at::zeros({4, own}), 1, sizes).sizes(), at::IntArrayRef({4, 20}));
    EXPECT_EQ(group.reduce_scatter(at::zeros({4, 20}), 1, sizes).sizes(),
              at::IntArrayRef({4, own}));
    EXPECT_EQ(group.ledger().total("all_reduce"), (Traffic{1, 42, 4 * 42}));  // 2 x 7/8 x 24
    EXPECT_EQ(group.ledger().total("all_gather"), (Traffic{1, 4 * (20 - own), 4 * 4 * (20 - own)}));
    EXPECT_EQ(group.ledger().total("reduce_scatter"), (Traffic{1, 4 * own * 7, 4 * 4 * own * 7}));
    EXPECT_EQ(group.ledger().total().calls, 3);
    group.ledger().clear();
    EXPECT_EQ(group.ledger().total(), Traffic());
  }
}

TEST(World, ASecondOneOverTheSameStoreDoesNotReadTheFirst) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      for (const std::string world : {"first", "second"}) {
        const World own = World::over_store(store, rank, 2);
        const auto told = own.exchange("test", c10::str(world, rank));
        EXPECT_EQ(told, (std::vector<std::string>{world + "0", world + "1"}));
        at::Tensor sum = at::full({3}, rank + 1.0);
        MPU(own, MpuOptions().tensor_parallel_size(2)).tensor_group()->all_reduce(sum);
        EXPECT_TRUE(at::equal(sum, at::full({3}, 3.0))) << world;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Mpu, RanksOutsideTheWorldAreRefused) {
  EXPECT_THAT(error_of([] { World::fake(4, 4); }), HasSubstr("rank 4"));
  EXPECT_THAT(error_of([] { MPU{World()}; }), HasSubstr("unset"));
}

}  // namespace
}  // namespace oslo
