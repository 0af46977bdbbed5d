// Checkpoints of grids with axes of other names, and folders from before there were any.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "tests/parallel_checkpoint_test/two_by_two.h"
#include "tests/support/files.h"

namespace oslo::checkpoint_test {
namespace {

/// The model of these tests cut over the axes row and column: both of one weight, one of another,
/// and nested on one dimension.
Model over_two_axes(int seed, const MPU& mpu) {
  Model model = make_model(seed);
  const MeshPtr mesh = mpu.mesh({"row", "column"});
  const auto cut_over = [&](const at::Tensor& parameter, const Placement& row,
                            const Placement& column, const std::string& name) {
    mark_parameter(
        parameter,
        std::make_shared<const Layout>(make_layout(mesh, {row, column}, parameter.sizes())), name);
  };
  const Placement whole = Placement::replicate();
  cut_over(model->wte->weight, Placement::shard(0), Placement::shard(0), "wte.weight");
  cut_over(model->qkv->weight, Placement::shard(1), Placement::shard(0, 3), "qkv.weight");
  cut_over(model->qkv->bias, whole, Placement::shard(0, 3), "qkv.bias");
  cut_over(model->proj->weight, Placement::shard(1), whole, "proj.weight");
  return model;
}

const std::vector<Axis> kTwo = {{"row", 2}, {"data", 2}, {"column", 3}};

TEST(CheckpointOfAxes, FilesAreNamedByTheirCoordinates) {
  const TemporaryDirectory folder;
  run_as_threads(12, [&](World world) {
    const MPU mpu(world, MpuOptions().axes(kTwo));
    const Model saved = over_two_axes(1, mpu);
    save_parallelized(*saved, mpu, folder / "ckpt");
    const Model loaded = over_two_axes(2, mpu);
    load_parallelized(*loaded, mpu, folder / "ckpt");
    expect_equal(whole_state(*loaded), whole_state(*make_model(1)));
    save_parallelized(*loaded, mpu, folder / "merged", SaveOptions().merge_checkpoints(true));
  });
  std::set<std::string> names = {kIndexName};
  for (const char* row : {"0", "1"}) {
    for (const char* column : {"0", "1", "2"}) {
      names.insert(std::string("pytorch_model_row_") + row + "_column_" + column +
                   "_pp_0.safetensors");
    }
  }
  EXPECT_EQ(names_in(folder / "ckpt"), names);
  const CheckpointIndex index = CheckpointIndex::read(folder / "ckpt" / kIndexName);
  EXPECT_EQ(index.mesh.axes(), kTwo);
  EXPECT_EQ(describe(index.mesh), "row 2 x data 2 x column 3");
  EXPECT_EQ(index.tensors.at("wte.weight").parts.size(), 6u);
  EXPECT_EQ(index.tensors.at("qkv.bias").parts.size(), 3u);     // not once a row
  EXPECT_EQ(index.tensors.at("proj.weight").parts.size(), 2u);  // not once a column
  ASSERT_EQ(index.tensors.at("scale").parts.size(), 1u);
  EXPECT_EQ(index.tensors.at("scale").parts[0].file,
            "pytorch_model_row_0_column_0_pp_0.safetensors");
  index.write(folder / "again.json");
  EXPECT_EQ(CheckpointIndex::read(folder / "again.json").mesh, index.mesh);
}

TEST(CheckpointOfAxes, MergedAndPartsGoIntoOtherGrids) {
  const TemporaryDirectory folder;
  run_as_threads(6, [&](World world) {
    const MPU mpu(world, MpuOptions().axes({{"row", 2}, {"column", 3}}));
    const Model saved = over_two_axes(1, mpu);
    save_parallelized(*saved, mpu, folder / "ckpt");
    save_parallelized(*saved, mpu, folder / "merged", SaveOptions().merge_checkpoints(true));
    // Other names, other sizes, another number of axes.
    const MPU one(world, MpuOptions().tensor_parallel_size(3));
    const Model loaded = make_parallel(2, one);
    const MPU turned(world, MpuOptions().axes({{"column", 2}, {"row", 3}}));
    const Model other = over_two_axes(3, turned);
    for (const char* name : {"merged", "ckpt"}) {
      load_parallelized(*loaded, one, folder / name);
      expect_equal(whole_state(*loaded), whole_state(*make_model(1)));
      load_parallelized(*other, turned, folder / name);
      expect_equal(whole_state(*other), whole_state(*make_model(1)));
    }
  });
  expect_equal(read_torch_bin(folder / "merged/pytorch_model.bin"), whole_state(*make_model(1)));
}

TEST(CheckpointOfAxes, OneAxisOfAnotherNameReadsAndWritesTheSameParts) {
  const TemporaryDirectory folder;
  run_as_threads(3, [&](World world) {
    const MPU blue(world, MpuOptions().axes({{"blue", 3}}));
    save_parallelized(*make_parallel(1, blue), blue, folder / "ckpt");
    const MPU usual(world, MpuOptions().tensor_parallel_size(3));
    const Model loaded = make_parallel(2, usual);
    load_parallelized(*loaded, usual, folder / "ckpt");
    expect_equal(whole_state(*loaded), whole_state(*make_model(1)));
  });
  EXPECT_EQ(names_in(folder / "ckpt").count("pytorch_model_blue_2_pp_0.safetensors"), 1u);
}

TEST(CheckpointOfAxes, TheUsualAxesKeepTheirNames) {
  const TemporaryDirectory folder;
  run_as_threads(4, [&](World world) {
    const MPU named(world, MpuOptions().axes({{"data", 2}, {"tensor", 2}}));
    save_parallelized(*make_parallel(1, named), named, folder / "named");
    const MPU sized(world, MpuOptions().tensor_parallel_size(2));
    save_parallelized(*make_parallel(1, sized), sized, folder / "sized");
    // Every order of the usual axes has the usual names.
    const MPU turned(world, MpuOptions().axes({{"tensor", 2}, {"data", 2}}));
    save_parallelized(*make_parallel(1, turned), turned, folder / "turned");
  });
  EXPECT_EQ(names_in(folder / "named"), names_in(folder / "sized"));
  EXPECT_EQ(names_in(folder / "turned"), names_in(folder / "sized"));
  for (const std::string& name : names_in(folder / "sized")) {
    EXPECT_EQ(test::contents(folder / "named" / name), test::contents(folder / "sized" / name))
        << name;
  }
}

/// An index without its hashes.
nlohmann::json contents_of_index(const std::string& path) {
  nlohmann::json json = nlohmann::json::parse(test::contents(path));
  json.erase("checksum");
  for (auto& file : json["files"]) file.erase(file.count("sha256") > 0 ? "sha256" : "xxh128");
  return json;
}

// Written by the library as it was before it had named axes and XXH3. Saved again it is the same
// folder, bit by bit but for the hashes, whatever the name of the axis that it was loaded over.
TEST(CheckpointOfAxes, FoldersFromBeforeLoad) {
  const std::string old = std::string(OSLO_SOURCE_DIR) + "/tests/data/checkpoint_before_axes";
  for (const char* name : {"tensor", "blue"}) {
    const TemporaryDirectory folder;
    run_as_threads(4, [&](World world) {
      const MPU own(world, MpuOptions().axes({{"data", 2}, {name, 2}}));
      const Model loaded = make_parallel(2, own);
      load_parallelized(*loaded, own, old);
      const MPU mpu(world, MpuOptions().tensor_parallel_size(2));
      save_parallelized(*loaded, mpu, folder / "new");
    });
    for (const std::string& file : names_in(old)) {
      if (file == kIndexName) continue;
      EXPECT_EQ(test::contents(folder / "new" / file), test::contents(old + "/" + file)) << file;
    }
    const auto index = [](const std::string& path) { return path + "/" + kIndexName; };
    // Its index says the same, in today's version.
    CheckpointIndex::read(index(old)).write(folder / "old.json");
    EXPECT_EQ(contents_of_index(index(folder / "new")), contents_of_index(folder / "old.json"));
  }
}

}  // namespace
}  // namespace oslo::checkpoint_test
