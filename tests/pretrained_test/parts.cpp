// What is read of a file for a part of a tensor: of one with a hole of gigabytes in it, which takes
// no disk, a few rows.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "checkpoint/formats/safetensors.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/placement/layout/value.h"
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
    const SafetensorsFile file(write_zeros(folder / "large.safetensors", spaces));
    const int64_t before = resident_bytes();
    const at::Tensor row =
        file.read_part("w", [](const at::Tensor& w) { return w.narrow(0, kRows - 1, 1); });
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
    const SafetensorsFile file(write_zeros(folder / "large.safetensors", 0));
    Layout layout(mpu.tensor_mesh());
    const Cut::Sizes pieces{2, kRows / 4 - 2};
    layout[0] = {0, std::make_shared<const Cut>(Cut::Runs{{4, pieces}})};
    const int64_t before = resident_bytes();
    const at::Tensor part =
        file.read_part("w", [&](const at::Tensor& w) { return local_part(w, layout); });
    EXPECT_LT(resident_bytes() - before, 8 << 20);
    EXPECT_TRUE(at::equal(part, at::zeros({8, kColumns})));
  });
}

}  // namespace
}  // namespace oslo::pretrained_test
