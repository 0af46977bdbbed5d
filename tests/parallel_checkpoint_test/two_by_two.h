#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <mutex>
#include <ostream>
#include <set>
#include <string>

#include "checkpoint/index/checkpoint_index.h"
#include "checkpoint/load/parallel_checkpoint.h"
#include "tests/parallel_checkpoint_test/checkpoint_model.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_directory.h"

#define EXPECT_SAYS(text, words) \
  EXPECT_NE((text).find(words), std::string::npos) << "the message was: " << (text)

namespace oslo::checkpoint_test {

namespace fs = std::filesystem;
using test::error_of;
using test::TemporaryDirectory;

inline std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

struct Sizes {
  int world, tensor, pipeline;
};
inline void PrintTo(const Sizes& mesh, std::ostream* out) {
  *out << mesh.world << " ranks, tensor " << mesh.tensor << ", pipeline " << mesh.pipeline;
}
inline MpuOptions options_of(const Sizes& mesh) {
  return MpuOptions().tensor_parallel_size(mesh.tensor).pipeline_parallel_size(mesh.pipeline);
}

/// One checkpoint of two tensor ranks and two data ranks.
class TwoByTwo : public ::testing::Test {
 protected:
  static constexpr Sizes kMesh = {4, 2, 1};

  void save(int seed, const SaveOptions& options = {}) {
    run_as_threads(kMesh.world, [&](World world) {
      const MPU mpu(world, options_of(kMesh));
      save_parallelized(*make_parallel(seed, mpu), mpu, target_, options);
    });
  }

  /// Loads on every rank, where it must fail with one message and change nothing.
  std::string failed_load(const std::function<void(ModelImpl&)>& change = {}, Sizes mesh = kMesh) {
    std::set<std::string> messages;
    std::mutex mutex;
    run_as_threads(mesh.world, [&](World world) {
      const MPU mpu(world, options_of(mesh));
      const Model model = make_parallel(2, mpu);
      if (change) change(*model);
      const StateDict before = whole_state(*model);
      const std::string message = error_of([&] { load_parallelized(*model, mpu, target_); });
      expect_equal(whole_state(*model), before);
      const std::lock_guard<std::mutex> lock(mutex);
      messages.insert(message);
    });
    EXPECT_EQ(messages.size(), 1u);
    return *messages.begin();
  }

  void expect_seed(int seed) {
    run_as_threads(kMesh.world, [&](World world) {
      const MPU mpu(world, options_of(kMesh));
      const Model loaded = make_parallel(9, mpu);
      load_parallelized(*loaded, mpu, target_);
      expect_equal(whole_state(*loaded), whole_state(*make_model(seed)));
    });
  }

  const TemporaryDirectory folder_;
  const std::string target_ = folder_ / "ckpt";
  const std::string second_ = target_ + "/pytorch_model_tp_1_pp_0.safetensors";
  const std::string index_ = target_ + "/" + kIndexName;
};

}  // namespace oslo::checkpoint_test
