// What is read for a region: exactly its elements, in work that grows as the tensors do; and what
// indexes that no save wrote come to.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "checkpoint/regions/region_reader.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_directory.h"

namespace oslo::resharding_test {
namespace {

using test::error_of;
using ::testing::HasSubstr;

/// (dimension, cut) by the outermost axis first.
using AxisCuts = std::vector<std::pair<int64_t, CutPtr>>;

/// A random cut of `size` elements over 2 or 3 ranks: stretches of uneven, sometimes empty pieces.
CutPtr random_cut(std::mt19937& dice, int64_t size) {
  const int ranks = 2 + static_cast<int>(dice() % 2);
  Cut::Runs runs;
  while (size > 0) {
    Cut::Run run{1 + static_cast<int64_t>(dice() % 3), Cut::Sizes(ranks, 0)};
    int64_t left = size / run.repeat;
    if (left == 0) run.repeat = 1, left = size;
    for (int rank = 0; rank < ranks; ++rank) {
      run.pieces[rank] = static_cast<int64_t>(dice() % (left + 1));
      left -= run.pieces[rank];
    }
    if (dice() % 2 == 0) run.pieces[ranks - 1] += left;  // else more runs follow
    int64_t taken = 0;
    for (const int64_t piece : run.pieces) taken += piece * run.repeat;
    size -= taken;
    runs.push_back(std::move(run));
  }
  if (runs.empty()) runs.push_back({1, Cut::Sizes(ranks, 0)});
  return std::make_shared<const Cut>(std::move(runs));
}

/// By operators, not by regions.
at::Tensor part_by_operators(at::Tensor whole, const AxisCuts& axes,
                             const std::vector<int>& place) {
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    const auto& [dim, cut] = axes[axis];
    std::vector<int64_t> own;
    int64_t at = 0;
    for (const Cut::Run& run : cut->runs()) {
      for (int64_t i = 0; i < run.repeat; ++i) {
        for (int rank = 0; rank < cut->ranks(); ++rank) {
          for (int64_t k = 0; k < run.pieces[rank]; ++k, ++at) {
            if (rank == place[axis]) own.push_back(at);
          }
        }
      }
    }
    whole = whole.index_select(dim, at::tensor(own, at::kLong));
  }
  return whole;
}

/// Cuts for one place after another: an inner axis cuts what the outer ones left at each place.
struct RandomCutting {
  RandomCutting(std::mt19937& dice, const std::vector<int64_t>& shape) {
    const size_t count = dice() % 3;
    std::vector<int64_t> dims;
    for (size_t axis = 0; axis < count; ++axis) dims.push_back(dice() % shape.size());
    grow(dice, shape, dims, {}, {});
  }

  void grow(std::mt19937& dice, const std::vector<int64_t>& shape, const std::vector<int64_t>& dims,
            const AxisCuts& axes, const std::vector<int>& place) {
    if (axes.size() == dims.size()) {
      places.emplace_back(axes, place);
      return;
    }
    const int64_t dim = dims[axes.size()];
    const CutPtr cut = random_cut(dice, shape[dim]);
    for (int rank = 0; rank < cut->ranks(); ++rank) {
      auto inner_shape = shape;
      inner_shape[dim] = cut->local_size(rank);
      auto inner = axes;
      inner.emplace_back(dim, cut);
      auto inner_place = place;
      inner_place.push_back(rank);
      grow(dice, inner_shape, dims, inner, inner_place);
    }
  }

  std::vector<std::pair<AxisCuts, std::vector<int>>> places;
};

CheckpointIndex::Cuts cuts_of_place(const AxisCuts& axes, const std::vector<int>& place) {
  CheckpointIndex::Cuts cuts;
  for (size_t i = 0; i < axes.size(); ++i)
    cuts.push_back({axes[i].first, place[i], axes[i].second});
  return cuts;
}

Region region_of_place(const std::vector<int64_t>& shape, const AxisCuts& axes,
                       const std::vector<int>& place) {
  Region region(shape);
  for (size_t i = 0; i < axes.size(); ++i) region.cut(axes[i].first, *axes[i].second, place[i]);
  return region;
}

// Any cuts of any number of axes, saved in one way and read in another, against index_select.
TEST(RegionReader, AnyCutsIntoAnyCuts) {
  const test::TemporaryDirectory folder;
  for (int seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 dice(seed);
    std::vector<int64_t> shape;
    for (size_t d = 0; d < 1 + static_cast<size_t>(seed % 3); ++d) shape.push_back(dice() % 12);
    const at::ScalarType dtype = seed % 2 == 0 ? at::kFloat : at::kBFloat16;
    const at::Tensor whole = at::randn(shape).to(dtype);
    const RandomCutting saved(dice, shape), wanted(dice, shape);
    CheckpointIndex::Tensor entry{shape, dtype, {}};
    for (size_t i = 0; i < saved.places.size(); ++i) {
      const auto& [axes, place] = saved.places[i];
      const bool bin = i % 2 == 1;
      const std::string file = std::to_string(i) + (bin ? ".bin" : ".safetensors");
      const StateDict part{{"w", part_by_operators(whole, axes, place)}};
      bin ? write_torch_bin(folder / file, part) : write_safetensors(folder / file, part);
      entry.parts.push_back({file, cuts_of_place(axes, place)});
    }
    RegionReader reader(folder.path());
    for (const auto& [axes, place] : wanted.places) {
      const at::Tensor expected = part_by_operators(whole, axes, place);
      const at::Tensor read = reader.read("w", entry, region_of_place(shape, axes, place));
      EXPECT_TRUE(at::equal(read, expected));
    }
  }
}

/// A folder of `tensors` matrices [12, 8] whose rows three ranks hold, and its index.
CheckpointIndex write_three_parts(const std::filesystem::path& folder, int tensors,
                                  const std::string& extension) {
  CheckpointIndex index;
  const auto cut = std::make_shared<const Cut>(Cut::balanced(12, 3));
  for (int rank = 0; rank < 3; ++rank) {
    const std::string file = std::to_string(rank) + extension;
    StateDict part;
    for (int i = 0; i < tensors; ++i) {
      const std::string name = "layer." + std::to_string(i);
      part.insert(name, at::full({4, 8}, 10.0f * i + rank));
      index.tensors[name].shape = {12, 8};
      index.tensors[name].dtype = at::kFloat;
      index.tensors[name].parts.push_back({file, {{0, rank, cut}}});
    }
    extension == ".bin" ? write_torch_bin(folder / file, part)
                        : write_safetensors(folder / file, part);
  }
  return index;
}

ReadCount read_rows(const std::filesystem::path& folder, const CheckpointIndex& index, int ranks,
                    int rank) {
  RegionReader reader(folder);
  for (const auto& [name, tensor] : index.tensors) {
    Region wanted(tensor.shape);
    wanted.cut(0, Cut::balanced(12, ranks), rank);
    reader.read(name, tensor, wanted);
  }
  return reader.count();
}

TEST(RegionReader, ReadsExactlyTheBytesOfItsPart) {
  const test::TemporaryDirectory folder;
  const CheckpointIndex index = write_three_parts(folder.path(), 5, ".safetensors");
  const uint64_t row = 5 * 8 * sizeof(float);
  // Over two ranks the second of three parts is read by both, each half of it.
  EXPECT_EQ(read_rows(folder.path(), index, 2, 0).bytes, 6 * row);
  EXPECT_EQ(read_rows(folder.path(), index, 2, 0).files, 2u);
  EXPECT_EQ(read_rows(folder.path(), index, 4, 0).bytes, 3 * row);
  EXPECT_EQ(read_rows(folder.path(), index, 4, 0).files, 1u);
  EXPECT_EQ(read_rows(folder.path(), index, 1, 0).bytes, 12 * row);
}

TEST(RegionReader, OfABinTheRecordsThatItLiesIn) {
  const test::TemporaryDirectory folder;
  const CheckpointIndex index = write_three_parts(folder.path(), 5, ".bin");
  const uint64_t row = 5 * 8 * sizeof(float);
  EXPECT_EQ(read_rows(folder.path(), index, 4, 0).bytes, 4 * row);
  EXPECT_EQ(read_rows(folder.path(), index, 2, 0).bytes, 8 * row);
}

TEST(RegionReader, WorkGrowsAsTheTensorsDo) {
  const auto work = [](int tensors) {
    const test::TemporaryDirectory folder;
    const CheckpointIndex index = write_three_parts(folder.path(), tensors, ".safetensors");
    return read_rows(folder.path(), index, 2, 0);
  };
  const ReadCount few = work(1000), many = work(4000);
  EXPECT_EQ(few.tensors, 1000u);
  EXPECT_EQ(few.parts, 3000u);
  EXPECT_EQ(many.tensors, 4 * few.tensors);
  EXPECT_EQ(many.parts, 4 * few.parts);
  EXPECT_EQ(many.bytes, 4 * few.bytes);
  EXPECT_EQ(many.files, few.files);
}

TEST(RegionReader, RefusesPartsThatLeaveOutOrOverlap) {
  const test::TemporaryDirectory folder;
  const CheckpointIndex good = write_three_parts(folder.path(), 1, ".safetensors");
  const auto refusal = [&](const std::function<void(CheckpointIndex::Tensor&)>& change) {
    CheckpointIndex::Tensor entry = good.tensors.at("layer.0");
    change(entry);
    RegionReader reader(folder.path());
    return error_of([&] { reader.read("layer.0", entry, Region(entry.shape)); });
  };
  EXPECT_THAT(refusal([](auto& entry) { entry.parts.erase(entry.parts.begin() + 1); }),
              HasSubstr("'layer.0' lies in 2 parts that leave some of it out"));
  EXPECT_THAT(refusal([](auto& entry) { entry.parts.push_back(entry.parts[2]); }),
              HasSubstr("overlap"));
  // As many elements as there should be, but one part twice.
  EXPECT_THAT(refusal([](auto& entry) { entry.parts[1] = entry.parts[0]; }), HasSubstr("overlap"));
  EXPECT_THAT(refusal([](auto& entry) { entry.dtype = at::kDouble; }),
              HasSubstr("'layer.0' is Float [4, 8], the index says Double [4, 8]"));
  EXPECT_THAT(refusal([](auto& entry) { entry.shape[1] = 9; }),
              HasSubstr("the index says Float [4, 9]"));
}

}  // namespace
}  // namespace oslo::resharding_test
