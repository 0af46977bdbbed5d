// A merge, a reshard and a conversion of a folder of large tensors in memory for two of them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/folders/rewrite_folder.h"
#include "checkpoint/formats/safetensors.h"
#include "tests/support/address_space.h"
#include "tests/support/temporary_directory.h"

namespace oslo::folder_commands_test {
namespace {

namespace fs = std::filesystem;

constexpr int kTensors = 8;
constexpr int64_t kRows = 4096, kColumns = 1024;  // of floats
constexpr uint64_t kTensorBytes = kRows * kColumns * sizeof(float);
/// For buffers, and for what the allocator keeps.
constexpr uint64_t kSlack = 40 << 20;

/// A parallel checkpoint of matrices whose columns two ranks share.
void write_columns(const fs::path& folder) {
  fs::create_directory(folder);
  CheckpointIndex index;
  index.mesh = RankGrid::of_sizes(1, 2, 1, RankOrder::pp_dp_tp);
  const auto cut = std::make_shared<const Cut>(Cut::balanced(kColumns, 2));
  for (int rank = 0; rank < 2; ++rank) {
    const std::string file = "pytorch_model_tp_" + std::to_string(rank) + "_pp_0.safetensors";
    StateDict part;
    for (int i = 0; i < kTensors; ++i) {
      const std::string name = "layer." + std::to_string(i);
      part.insert(name, at::full({kRows, kColumns / 2}, 10.0f * i + rank));
      CheckpointIndex::Tensor& tensor = index.tensors[name];
      tensor.shape = {kRows, kColumns};
      tensor.dtype = at::kFloat;
      tensor.parts.push_back({file, {{1, rank, cut}}});
    }
    index.files[file] = write_safetensors(folder / file, part);
  }
  index.write(folder / kIndexName);
}

/// From the start of the program what is large is mapped, and unmapped when it goes: else glibc
/// keeps it, and a child has room that its limit does not see.
[[maybe_unused]] const int kLargeIsMapped = mallopt(M_MMAP_THRESHOLD, 1 << 20);

/// Whether `work` runs, in a process of its own, with room for `more` bytes than there are now.
bool runs_within(uint64_t more, const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    test::limit_address_space(test::address_space() + more);
    try {
      work();
      _exit(0);
    } catch (const std::exception& error) {
      std::cerr << "in the child: " << error.what() << std::endl;
      _exit(1);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(FolderMemory, IsThatOfTwoTensors) {
  OSLO_LIMITS_ADDRESS_SPACE();
  const test::TemporaryDirectory folder;
  at::set_num_threads(1);
  write_columns(folder / "ckpt");
  const auto work = [&](Format format) {
    return [&, format] {
      rewrite_folder(folder / "ckpt", folder / ("merged" + std::string(names_of(format).name)),
                     [&](const auto& index) { return plan_merged(index, format); });
    };
  };
  const auto reshard = [&] {
    rewrite_folder(folder / "ckpt", folder / "three", [&](const auto& index) {
      return plan_resharded(index, 3, 2, Format::safetensors);
    });
  };
  // A tensor and, mapped, a part of it.
  EXPECT_TRUE(runs_within(2 * kTensorBytes + kSlack, work(Format::safetensors)));
  EXPECT_TRUE(runs_within(2 * kTensorBytes + kSlack, work(Format::torch_bin)));
  EXPECT_TRUE(runs_within(2 * kTensorBytes + kSlack, reshard));
  // All of them at once do not fit.
  EXPECT_FALSE(runs_within(2 * kTensorBytes + kSlack, [&] {
    const CheckpointFolder all(folder / "ckpt");
    std::vector<at::Tensor> tensors;
    for (const auto& [name, _] : all.index().tensors)
      tensors.push_back(all.read(name, LayoutPtr()));
  }));
  // From a .bin: the record that a tensor lies in, and the tensor.
  EXPECT_TRUE(runs_within(2 * kTensorBytes + kSlack, [&] {
    rewrite_folder(folder / "mergedbin", folder / "back",
                   [&](const auto& index) { return plan_merged(index, Format::safetensors); });
  }));
  const VerifiedFolder verified = verify_folder(folder / "back");
  EXPECT_EQ(verified.tensors, static_cast<size_t>(kTensors));
  EXPECT_EQ(verified.bytes, kTensors * kTensorBytes);
}

TEST(FolderMemory, ProgressEndsAtAllOfTheBytes) {
  const test::TemporaryDirectory folder;
  write_columns(folder / "ckpt");
  uint64_t last = 0, whole = 0;
  int calls = 0;
  rewrite_folder(
      folder / "ckpt", folder / "merged",
      [](const auto& index) { return plan_merged(index, Format::safetensors); },
      [&](uint64_t done, uint64_t all) {
        EXPECT_GE(done, last);
        EXPECT_TRUE(calls == 0 || all == whole);
        last = done;
        whole = all;
        ++calls;
      });
  EXPECT_EQ(last, whole);
  EXPECT_GE(calls, kTensors);
}

}  // namespace
}  // namespace oslo::folder_commands_test
