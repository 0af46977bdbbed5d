// Every checkpoint goes into every layout, bit for bit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/resharding_test/resharding_layouts.h"
#include "tests/support/temporary_directory.h"

namespace oslo::resharding_test {
namespace {

struct Saved {
  std::string folder;
  GridCase grid;
  SaveOptions options;
};

/// The folders that all grids write, and three of one process.
std::vector<Saved> folders() {
  std::vector<Saved> all;
  for (const GridCase& grid : grid_cases()) all.push_back({grid.name, grid, {}});
  const GridCase two{"tensor 2 x pipeline 2", 2, 2};
  all.push_back({"bin of tensor 2 x pipeline 2", two, SaveOptions().format("bin")});
  all.push_back({"merged", two, SaveOptions().merge_checkpoints(true).format("safetensors")});
  all.push_back({"merged bin", two, SaveOptions().merge_checkpoints(true).format("bin")});
  return all;
}

TEST(Resharding, EveryFolderGoesIntoEveryLayout) {
  const test::TemporaryDirectory folder;
  for (const Saved& saved : folders()) {
    on_grid(saved.grid, 1, [&](ParallelModel& parallel, Gpt2&) {
      parallel.save_parallelized(folder / saved.folder, saved.options);
    });
  }
  const Gpt2 expected = make_gpt2(1);
  for (const GridCase& grid : grid_cases()) {
    on_grid(grid, 2, [&](ParallelModel& parallel, Gpt2& model) {
      for (const Saved& saved : folders()) {
        SCOPED_TRACE(saved.folder + " into " + grid.name);
        {  // so that every load has something to do
          const torch::NoGradGuard no_grad;
          for (torch::Tensor& parameter : model->parameters()) parameter.zero_();
        }
        parallel.from_parallelized(folder / saved.folder);
        expect_values(model, expected);
      }
    });
  }
  for (const Saved& saved : folders()) {  // and into an ordinary model
    const Gpt2 model = make_gpt2(2);
    load_state(*model, std::string(folder / saved.folder));
    expect_values(model, expected);
  }
}

TEST(Resharding, HuggingFaceFoldersGoIntoEveryLayout) {
  const test::TemporaryDirectory folder;
  const Gpt2 expected = make_gpt2(1);
  save_pretrained(expected, std::string(folder / "whole"),
                  PretrainedOptions().config(small_config().to_json()));
  save_pretrained(expected, std::string(folder / "sharded"),
                  PretrainedOptions().config(small_config().to_json()).max_shard_bytes(5000));
  for (const GridCase& grid : grid_cases()) {
    on_grid(grid, 2, [&](ParallelModel& parallel, Gpt2& model) {
      for (const char* name : {"whole", "sharded"}) {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& parameter : model->parameters()) parameter.zero_();
        parallel.from_parallelized(folder / name);
        expect_values(model, expected);
      }
    });
  }
  for (const char* name : {"whole", "sharded"}) {
    const Gpt2 model = make_gpt2(2);
    load_state(*model, folder / name);
    expect_values(model, expected);
  }
}

TEST(Resharding, TypesAreConvertedWhereThatIsAskedFor) {
  const test::TemporaryDirectory folder;
  const GridCase two{"tensor 2", 2}, three{"tensor 3", 3};
  on_grid(two, 1,
          [&](ParallelModel& parallel, Gpt2&) { parallel.save_parallelized(folder / "ckpt"); });
  run_as_threads(three.world(), [&](World world) {
    Gpt2 model = make_gpt2(2);
    model->to(torch::kBFloat16);
    InitializeOptions how;
    how.world = world;
    ParallelModel parallel = initialize(model, three.config(), how);
    try {
      parallel.from_parallelized(folder / "ckpt");
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("LoadOptions().convert(true)"), std::string::npos);
    }
    parallel.from_parallelized(folder / "ckpt", LoadOptions().convert(true));
    Gpt2 expected = make_gpt2(1);
    expected->to(torch::kBFloat16);
    expect_values(model, expected);
  });
}

}  // namespace
}  // namespace oslo::resharding_test
