// The best weights are kept in a file and taken back.
#include "tests/programs_test/small_nets.h"
#include "tests/programs_test/training_program.h"
#include "tests/support/temporary_directory.h"

namespace programs {
namespace {

bool has_cut(const nn::Module& model) {
  for (const auto& p : model.parameters()) {
    if (oslo::is_placed(p)) return true;
  }
  return false;
}

/// The best weights are kept in a file, and taken back when the validation loss rises twice. Plain
/// LibTorch's way to keep them would write this rank's part, so it is refused where one is cut.
template <typename Model>
void early_stopping(Device& device, Model model, const Tensor& rows,
                    const std::string& checkpoint) {
  const auto x_of = [&](int step) { return device.part(rows + 0.1 * step); };
  const auto parallel = device.initialize(model, [&] { model->forward(x_of(0)); });
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1.5));
  Replica replica(device, model);
  std::stringstream best_file;
  double best = std::numeric_limits<double>::infinity();
  int patience = 2;
  const Tensor labels = classes({rows.size(0)}, 5, 1);
  for (int epoch = 0; epoch < 8 && patience > 0; ++epoch) {
    optimizer.zero_grad();
    nn::functional::cross_entropy(replica.forward(x_of(epoch)), device.part(labels)).backward();
    optimizer.step();
    const torch::NoGradGuard no_grad;
    const Tensor validation = nn::functional::cross_entropy(model->forward(rows - 0.5), labels);
    device.note("validation loss", validation);
    if (validation.item<double>() >= best) {
      --patience;
      continue;
    }
    best = validation.item<double>();
    if (!device.is_parallel() || !has_cut(*model)) {
      best_file.str("");
      torch::save(model, best_file);
      if (!device.is_parallel()) continue;
    } else {
      std::stringstream attempt;
      EXPECT_THAT(oslo::test::error_of([&] { torch::save(model, attempt); }),
                  testing::HasSubstr("save_parallelized"));
      EXPECT_THAT(oslo::test::error_of([&] { torch::save(model->parameters(), attempt); }),
                  testing::HasSubstr("save_parallelized"));
    }
    parallel->save_parallelized(checkpoint);
  }
  device.note("patience", patience);
  device.note_state("last", *model);
  if (parallel) {
    parallel->from_parallelized(checkpoint);
  } else {
    torch::serialize::InputArchive archive;
    archive.load_from(best_file);
    model->load(archive);
  }
  device.note_state("best", *model);
  optimizer.zero_grad();
  nn::functional::cross_entropy(replica.forward(x_of(0)), device.part(labels)).backward();
  device.note_gradients("after going back", *model);
}

/// Each mesh has a folder of its own: the ranks share it.
std::string checkpoint_of(const Device& device, const char* name) {
  static const oslo::test::TemporaryDirectory folder;
  return folder / (name + device.mesh().name());
}

void early_stopping_of_linears(Device& device) {
  auto model = Device::make(5, [] { return SmallNet(); });
  early_stopping(device, model, numbers({kRows, 7}, 3), checkpoint_of(device, "linears"));
}
TRAINING_PROGRAM(early_stopping_of_linears);

void early_stopping_of_convolutions(Device& device) {
  auto model = Device::make(6, [] { return ConvNet(); });
  early_stopping(device, model, numbers({4, 49}, 3), checkpoint_of(device, "convolutions"));
}
TRAINING_PROGRAM(early_stopping_of_convolutions);

}  // namespace
}  // namespace programs
