// What is read of a file for a part of a tensor: of one with a hole of gigabytes in it, which takes
// no disk, a few rows.
#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/formats/file_format.h"
#include "checkpoint/regions/file_overlap.h"
#include "checkpoint/regions/region.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/placement/layout/layout.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo::pretrained_test {
namespace {

constexpr int64_t kRows = 1 << 19, kColumns = 1024;  // of floats: 2 GiB

/// A tensor "w" of zeros; a header of `spaces` more bytes than it needs.
std::filesystem::path write_zeros(const std::filesystem::path& path, size_t spaces) {
  const std::string header = R"({"w":{"dtype":"F32","shape":[524288,1024],"data_offsets":[0,)" +
                             std::to_string(kRows * kColumns * 4) + "]}}" +
                             std::string(spaces, ' ');
  const uint64_t length = header.size();
  test::write_contents(path, std::string(reinterpret_cast<const char*>(&length), 8) + header);
  std::filesystem::resize_file(path, 8 + length + kRows * kColumns * 4);
  return path;
}

int64_t resident_bytes() {
  int64_t pages = 0, all = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * 4096;
}

TEST(SafetensorsPart, ReadsNoMoreThanItTakes) {
  const test::TemporaryDirectory folder;
  for (size_t spaces = 0; spaces < 4; ++spaces) {  // of four lengths one is aligned
    const auto file =
        open_tensor_file(InputFile(write_zeros(folder / "large.safetensors", spaces)));
    const int64_t before = resident_bytes();
    at::Tensor row = at::ones({1, kColumns});
    Overlap last;
    last.dims = {{{kRows - 1, 0, 1}}, {{0, 0, kColumns}}};
    copy_from_file(*file, "w", last, false, row);
    EXPECT_LT(resident_bytes() - before, 8 << 20);
    EXPECT_TRUE(at::equal(row, at::zeros({1, kColumns})));
  }
}

/// A fused query-key-value of which this rank has three stretches of few rows, the other the rest.
TEST(SafetensorsPart, StretchesOfOtherRanksAreNotRead) {
  const test::TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(2));
    if (world.rank() != 0) return;
    const auto file = open_tensor_file(InputFile(write_zeros(folder / "large.safetensors", 0)));
    Layout layout(mpu.tensor_mesh());
    const Cut::Sizes pieces{2, kRows / 4 - 2};
    layout[0] = {0, std::make_shared<const Cut>(Cut::Runs{{4, pieces}})};
    const int64_t before = resident_bytes();
    const std::vector<int64_t> shape{kRows, kColumns};
    at::Tensor part = at::ones({8, kColumns});
    const Region own(shape, std::make_shared<const Layout>(layout));
    copy_from_file(*file, "w", overlap_of(Region(shape), own), false, part);
    EXPECT_LT(resident_bytes() - before, 8 << 20);
    EXPECT_TRUE(at::equal(part, at::zeros({8, kColumns})));
  });
}

/// Numbers of more bytes than are read at once, along each dimension, in either order.
TEST(SafetensorsPart, AnyPartOfAnyShape) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path path = folder / "numbers.safetensors";
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {}, {0, 3}, {400001}, {700, 601}, {3, 300001}, {2, 3, 90001}, {2, 401, 5, 100}}) {
    StateDict state;
    const at::Tensor all = at::arange(c10::multiply_integers(shape), at::kInt).view(shape);
    state.insert("x", all);
    write_safetensors(path, state);
    const auto file = open_tensor_file(InputFile(path));
    for (size_t dim = 0; dim <= shape.size(); ++dim) {
      at::Tensor expected = all;
      Overlap overlap = overlap_of(Region(shape), Region(shape));
      if (dim < shape.size() && shape[dim] > 0) {
        const int64_t size = shape[dim], half = size / 2;  // the ends, and not the middle
        overlap.dims[dim] = {{0, 0, half - half / 2}, {size - half, half - half / 2, half}};
        const auto d = static_cast<int64_t>(dim);
        expected =
            at::cat({all.narrow(d, 0, half - half / 2), all.narrow(d, size - half, half)}, d);
      }
      at::Tensor part = at::full(expected.sizes(), -1, at::kInt);
      copy_from_file(*file, "x", overlap, false, part);
      EXPECT_TRUE(at::equal(part, expected)) << all.sizes() << " cut on " << dim;
      if (shape.size() != 2) continue;
      std::swap(overlap.dims[0], overlap.dims[1]);
      at::Tensor turned = at::full(expected.t().sizes(), -1, at::kInt);
      copy_from_file(*file, "x", overlap, true, turned);
      EXPECT_TRUE(at::equal(turned, expected.t())) << all.sizes() << " turned, cut on " << dim;
    }
  }
}

}  // namespace
}  // namespace oslo::pretrained_test
