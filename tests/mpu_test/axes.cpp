// Grids of any number of named axes: groups against a table made another way, names, refusals.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "mpu/grid/mpu.h"
#include "tests/support/error_of.h"

namespace oslo {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Groups = std::vector<std::vector<int>>;

RankGrid grid_of(std::vector<Axis> axes) {
  int world = 1;
  for (const Axis& axis : axes) world *= axis.size;
  return MpuOptions().axes(std::move(axes)).grid(world);
}

/// Independent of the library's arithmetic: the ranks counted into a tensor of the grid's shape,
/// whose other dimensions are moved to the front.
Groups table(const std::vector<Axis>& axes, const std::vector<std::string>& along) {
  std::vector<int64_t> shape, order, inner;
  int64_t members = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    shape.push_back(axes[i].size);
    const bool in = std::find(along.begin(), along.end(), axes[i].name) != along.end();
    (in ? inner : order).push_back(static_cast<int64_t>(i));
    if (in) members *= axes[i].size;
  }
  order.insert(order.end(), inner.begin(), inner.end());
  const int64_t world = c10::multiply_integers(shape);
  const at::Tensor rows =
      at::arange(world).view(shape).permute(order).reshape({world / members, members});
  Groups groups;
  for (int64_t g = 0; g < rows.size(0); ++g) {
    groups.emplace_back();
    for (int64_t m = 0; m < members; ++m) groups[g].push_back(rows[g][m].item<int>());
  }
  return groups;
}

TEST(NamedAxes, OneToFiveAxesOfOddSizesAgreeWithATable) {
  const std::vector<std::vector<Axis>> grids = {
      {{"row", 5}},
      {{"data", 3}, {"row", 5}},
      {{"row", 3}, {"data", 7}},
      {{"pipeline", 3}, {"row", 1}, {"column", 5}},
      {{"depth", 3}, {"pipeline", 2}, {"data", 3}, {"row", 5}},
      {{"pipeline", 2}, {"data", 3}, {"depth", 1}, {"row", 3}, {"column", 5}},
      {{"sequence", 3}, {"expert", 2}, {"data", 2}, {"tensor", 3}, {"pipeline", 3}},
  };
  for (const std::vector<Axis>& axes : grids) {
    const RankGrid grid = grid_of(axes);
    SCOPED_TRACE(factors(axes));
    std::vector<std::string> model, layers;
    bool has_tensor = false;
    for (const Axis& axis : axes) {
      EXPECT_EQ(grid.groups(axis.name), table(axes, {axis.name})) << axis.name;
      EXPECT_EQ(grid.size(axis.name), axis.size);
      if (axis.name != "data") model.push_back(axis.name);
      if (axis.name != "data" && axis.name != "pipeline") layers.push_back(axis.name);
      has_tensor |= axis.name == "tensor";
    }
    EXPECT_EQ(grid.groups("model"), table(axes, model));
    EXPECT_EQ(grid.groups("tensor"),
              table(axes, has_tensor ? std::vector<std::string>{"tensor"} : layers));
    EXPECT_EQ(grid.layer_axes(), layers);
  }
}

TEST(NamedAxes, TheTablesOfWorldEight) {
  const RankGrid two = grid_of({{"pipeline", 2}, {"data", 1}, {"tensor", 4}});
  EXPECT_EQ(two.groups("tensor"), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  const RankGrid cube = grid_of({{"pipeline", 2}, {"data", 2}, {"tensor", 2}});
  EXPECT_EQ(cube.groups("pipeline"), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(cube.groups("data"), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(cube, RankGrid::of_sizes(2, 2, 2));
  const RankGrid flat = grid_of({{"data", 2}, {"row", 2}, {"column", 2}});
  EXPECT_EQ(flat.groups("row"), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(flat.groups("column"), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(flat.groups("model"), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(NamedAxes, TheUsualOrdersAreRecognized) {
  EXPECT_EQ(grid_of({{"pipeline", 2}, {"data", 3}, {"tensor", 5}}).rank_order(),
            RankOrder::pp_dp_tp);
  EXPECT_EQ(grid_of({{"data", 3}, {"pipeline", 2}}).rank_order(), RankOrder::dp_pp_tp);
  EXPECT_EQ(grid_of({{"data", 3}, {"tensor", 2}}).rank_order(), RankOrder::pp_dp_tp);
  EXPECT_EQ(grid_of({{"tensor", 2}, {"data", 3}}).rank_order(), std::nullopt);
  EXPECT_EQ(grid_of({{"data", 2}, {"row", 3}}).rank_order(), std::nullopt);
  EXPECT_EQ(RankGrid().rank_order(), RankOrder::pp_dp_tp);
}

TEST(NamedAxes, EveryGroupAndGetterReachesItsRanks) {
  run_as_threads(12, [](World world) {
    const std::vector<Axis> axes = {{"data", 2}, {"row", 3}, {"column", 2}};
    const MPU mpu(world, MpuOptions().axes(axes));
    const auto expect_group = [&](const std::string& name, const std::vector<std::string>& along) {
      const Groups groups = table(axes, along);
      const auto mine = std::find_if(groups.begin(), groups.end(), [&](const auto& ranks) {
        return std::find(ranks.begin(), ranks.end(), world.rank()) != ranks.end();
      });
      EXPECT_EQ(mpu.group(name)->ranks(), *mine) << name;
      EXPECT_EQ(mpu.size(name), static_cast<int>(mine->size())) << name;
      EXPECT_EQ((*mine)[mpu.rank(name)], world.rank()) << name;
      EXPECT_EQ(mpu.rank(name), mpu.grid().coordinate(name, world.rank())) << name;
      const std::vector<int64_t> met = mpu.group(name)->exchange(world.rank());
      EXPECT_EQ(std::vector<int>(met.begin(), met.end()), *mine) << name;
      const at::Tensor sum =
          mpu.group(name)->all_reduce(at::full({3}, world.rank() + 1.0, at::kDouble));
      EXPECT_EQ(sum[1].item<double>(),
                std::accumulate(mine->begin(), mine->end(), 0.0) + mine->size())
          << name;
    };
    expect_group("data", {"data"});
    expect_group("row", {"row"});
    expect_group("column", {"column"});
    expect_group("tensor", {"row", "column"});
    expect_group("model", {"row", "column"});
    expect_group("pipeline", {});
    expect_group("depth", {});
    EXPECT_EQ(mpu.get_tensor_row_parallel_rank(), world.rank() / 2 % 3);
    EXPECT_EQ(mpu.get_tensor_row_parallel_group()->getSize(), 3);
    EXPECT_EQ(mpu.get_tensor_column_parallel_world_size(), 2);
    EXPECT_EQ(mpu.get_tensor_column_parallel_ranks(), mpu.group("column")->ranks());
    EXPECT_EQ(mpu.get_tensor_parallel_world_size(), 6);
    EXPECT_EQ(mpu.get_tensor_depth_parallel_world_size(), 1);
    EXPECT_EQ(mpu.get_sequence_parallel_groups().size(), 12U);
    EXPECT_TRUE(mpu.is_pipeline_first_stage() && mpu.is_pipeline_last_stage());
  });
}

TEST(NamedAxes, TheOneAxisThatCutsLayersIsTheTensorGroup) {
  run_as_threads(6, [](World world) {
    const MPU mpu(world, MpuOptions().axes({{"data", 2}, {"row", 3}}));
    EXPECT_EQ(mpu.tensor_group(), mpu.group("row"));
    EXPECT_EQ(mpu.tensor_mesh(), mpu.mesh({"row"}));
    EXPECT_EQ(mpu.groups().size(), 4U);  // data, row, pipeline, model
    // Made while the program runs, by one rank alone: nobody is needed for it.
    if (world.rank() == 1) {
      EXPECT_EQ(mpu.group("sequence")->ranks(), std::vector<int>{1});
    }
  });
}

TEST(NamedAxes, MeshesAreAnyOfTheAxesInAnyOrder) {
  run_as_threads(12, [](World world) {
    const MPU mpu(world, MpuOptions().axes({{"data", 2}, {"row", 3}, {"column", 2}}));
    const MeshPtr mesh = mpu.mesh({"column", "row"});
    ASSERT_EQ(mesh->axes(), 2);
    EXPECT_EQ(mesh->axis(0), mpu.group("column"));
    EXPECT_EQ(mesh->axis(1), mpu.group("row"));
    EXPECT_EQ(mesh, mpu.mesh({"column", "row"}));
    EXPECT_EQ(mpu.tensor_mesh(), mpu.mesh({"row", "column"}));
    EXPECT_EQ(mpu.mesh({"data", "tensor"})->axis(1)->size(), 6);
    EXPECT_THAT(error_of([&] {
                  mpu.mesh({"tensor", "row"});
                }),
                HasSubstr("tensor and row both hold the axis row"));
    EXPECT_THAT(error_of([&] { mpu.mesh({"depth", "depth"}); }), HasSubstr("each axis once"));
    EXPECT_THAT(error_of([&] { mpu.mesh({"rwo"}); }),
                HasSubstr("no axis named \"rwo\"; the grid is data 2 x row 3 x column 2"));
    EXPECT_THAT(error_of([&] { mpu.mesh({}); }), HasSubstr("a mesh needs an axis"));
  });
}

TEST(NamedAxes, RefusedNames) {
  const auto refused = [](std::vector<Axis> axes) {
    return error_of([&] { MpuOptions().axes(axes).grid(4); });
  };
  EXPECT_THAT(refused({{"row", 2}, {"row", 2}}), HasSubstr("the axis row is given twice"));
  EXPECT_THAT(refused({{"model", 4}}), AllOf(HasSubstr("\"model\""), HasSubstr("reserved")));
  for (const char* word : {"world", "replica", "tp", "pp", "dp"}) {
    EXPECT_THAT(refused({{word, 4}}), HasSubstr("write out tensor, pipeline and data")) << word;
  }
  EXPECT_THAT(refused({{"Row", 4}}), HasSubstr("cannot be named \"Row\""));
  EXPECT_THAT(refused({{"", 4}}), HasSubstr("cannot be named \"\""));
  EXPECT_THAT(refused({{"../x", 4}}), HasSubstr("cannot be named \"../x\""));
  EXPECT_THAT(refused({{"2d", 4}}), HasSubstr("a letter first"));
  EXPECT_THAT(refused({{std::string(33, 'a'), 4}}), HasSubstr("1 to 32"));
  EXPECT_THAT(error_of([] {
                MpuOptions().axes({{"row", 4}}).tensor_parallel_size(2).grid(4);
              }),
              HasSubstr("given twice, by axes and by tensor_parallel_size"));
  EXPECT_THAT(error_of([] {
                MpuOptions().axes({{"row", 4}}).rank_order(RankOrder::dp_pp_tp).grid(4);
              }),
              HasSubstr("by rank_order"));
}

TEST(NamedAxes, SizesThatDoNotFitNameFactorsProductAndTheNearest) {
  const auto refused = [](std::vector<Axis> axes, int world) {
    return error_of([&] { MpuOptions().axes(axes).grid(world); });
  };
  EXPECT_THAT(refused({{"data", 2}, {"row", 3}, {"column", 2}}, 8),
              AllOf(HasSubstr("column 2 x row 3 x data 2 = 12 ranks, but the world has 8"),
                    HasSubstr("nearest sizes that fit are column 2 x row 2 x data 2")));
  EXPECT_THAT(refused({{"row", 2}, {"column", 2}}, 12),
              HasSubstr("nearest sizes that fit are column 2 x row 2 x data 3"));
  EXPECT_THAT(refused({{"row", 5}}, 1), HasSubstr("nearest sizes that fit are row 1"));
  EXPECT_THAT(refused({{"row", 0}}, 4), HasSubstr("row_parallel_size is 0"));
  EXPECT_THAT(refused({{"row", 1 << 20}, {"column", 1 << 20}, {"depth", 1 << 24}}, 1),
              HasSubstr("but the world has 1"));
  EXPECT_THAT(refused({}, 4), HasSubstr("but the world has 4"));
}

TEST(NamedAxes, NearestSizesAlwaysFit) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const int world = 1 + static_cast<int>(random() % 60);
    std::vector<Axis> axes;
    for (const char* name : {"pipeline", "data", "row", "column"}) {
      if (random() % 4 != 0) axes.push_back({name, 1 + static_cast<int>(random() % 9)});
    }
    const std::string error = error_of([&] { MpuOptions().axes(axes).grid(world); });
    if (error.empty()) continue;
    const std::string fits = "nearest sizes that fit are ";
    std::string rest = error.substr(error.find(fits) + fits.size());
    int product = 1;
    for (size_t at = 0; (at = rest.find_first_of("0123456789", at)) != std::string::npos;) {
      size_t length = 0;
      product *= std::stoi(rest.substr(at), &length);
      at += length;
    }
    EXPECT_EQ(product, world) << error;
  }
}

TEST(NamedAxes, TheGridAsText) {
  EXPECT_EQ(grid_of({{"pipeline", 2}, {"data", 2}, {"tensor", 3}}).to_string(),
            R"(12 ranks = pipeline 2 x data 2 x tensor 3
  pipeline 0  tensor   0   1   2
    data 0             0   1   2
    data 1             3   4   5
  pipeline 1  tensor   0   1   2
    data 0             6   7   8
    data 1             9  10  11
  groups
    tensor    4 of 3: [0 1 2] [3 4 5] [6 7 8] [9 10 11]
    data      6 of 2: [0 3] [1 4] [2 5] [6 9] [7 10] [8 11]
    pipeline  6 of 2: [0 6] [1 7] [2 8] [3 9] [4 10] [5 11]
    model     2 of 6: [0 1 2 6 7 8] [3 4 5 9 10 11]
)");
  EXPECT_EQ(grid_of({{"row", 3}}).to_string(), R"(3 ranks = row 3
    row  0  1  2
         0  1  2
  groups
    row  1 of 3: [0 1 2]
)");
  EXPECT_EQ(RankGrid().to_string(), "1 rank\n");
  EXPECT_THAT(RankGrid::of_sizes(32, 8, 16).to_string(),
              AllOf(HasSubstr("4096 ranks = pipeline 16 x data 32 x tensor 8"),
                    HasSubstr("tensor    512 of 8: [0 1 2 3 4 5 6 7] [8 9"),
                    HasSubstr("[0 8 16 24 32 40 .. 248]"), HasSubstr(".. [4088 4089")));
  const MPU mpu(World::fake(5, 6), MpuOptions().axes({{"data", 2}, {"row", 3}}));
  EXPECT_THAT(mpu.to_string(), AllOf(HasSubstr("rank 5 is data 1, row 2"),
                                     HasSubstr("row   2 of 3: [0 1 2] [3 4 5]")));
}

}  // namespace
}  // namespace oslo
