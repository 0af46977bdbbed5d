// Every folder of one layout goes into every other with the optimizer's states, bit for bit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/resharding_test/known_states.h"
#include "tests/resharding_test/resharding_layouts.h"
#include "tests/support/temporary_directory.h"

namespace oslo::resharding_test {
namespace {

struct SavedStates {
  std::string folder;
  GridCase grid;
  SaveOptions options;
};

/// Parts of each layout and whole tensors of each: 16 folders.
std::vector<SavedStates> folders_with_states() {
  std::vector<SavedStates> all;
  for (const GridCase& grid : grid_cases()) {
    all.push_back({"parts of " + grid.name, grid, SaveOptions()});
    all.push_back(
        {"merged " + grid.name, grid, SaveOptions().merge_checkpoints(true).format("safetensors")});
  }
  return all;
}

TEST(Resharding, AnOptimizersStatesGoIntoEveryLayout) {
  for (const Kind kind : kKinds) {
    const test::TemporaryDirectory folder;
    const Known known(kind);
    save_known(kind, folder / "known");
    for (const SavedStates& saved : folders_with_states()) {
      SCOPED_TRACE(saved.folder);
      on_grid(saved.grid, 1, [&](ParallelModel& parallel, Gpt2& model) {
        const auto optimizer = make_optimizer(kind, model);
        parallel.from_parallelized(folder / "known", with_states(*optimizer));
        expect_states(*optimizer, model, known);
        SaveOptions options = saved.options;
        parallel.save_parallelized(folder / saved.folder,
                                   options.optimizer(optimizer.get()).random_states(false));
      });
    }
    for (const GridCase& grid : grid_cases()) {
      on_grid(grid, 2, [&](ParallelModel& parallel, Gpt2& model) {
        for (const SavedStates& saved : folders_with_states()) {
          SCOPED_TRACE(saved.folder + " into " + grid.name);
          {  // so that every load has something to do
            const torch::NoGradGuard no_grad;
            for (torch::Tensor& parameter : model->parameters()) parameter.zero_();
          }
          const auto optimizer = make_optimizer(kind, model, 0.3);
          parallel.from_parallelized(folder / saved.folder, with_states(*optimizer));
          expect_values(model, known.model);
          expect_states(*optimizer, model, known);
          for (size_t i = 0; i < 2; ++i) {
            EXPECT_EQ(optimizer->param_groups()[i].options().get_lr(),
                      known.optimizer->param_groups()[i].options().get_lr());
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace oslo::resharding_test
