// Exported programs with recomputation in the config: one device runs the same program.
#include "tests/exported_model_test/python_run.h"
#include "tests/support/recomputation_catalogue.h"

namespace catalogue {
namespace {

/// `stays`: ends of the paths of modules that are in evaluation.
Entry exported(const std::string& name, const oslo::test::Loss& loss,
               const std::vector<std::string>& stays = {}) {
  Entry made;
  made.name = name;
  made.make = [name, stays] {
    const auto model = oslo::load_exported(oslo::test::kExported / (name + ".pt2"));
    for (const auto& item : model->named_modules()) {
      for (const std::string& end : stays) {
        if (item.key().ends_with(end)) item.value()->eval();
      }
    }
    return model;
  };
  made.batch = [name](int step) {
    const oslo::test::PythonRun run(name);
    return Batch{run.inputs(step), run.target(step)};
  };
  made.forward = [](torch::nn::Module& model, const Tensors& inputs) {
    return oslo::test::tensors_of(
        dynamic_cast<oslo::ExportedModule&>(model).forward(oslo::test::values_of(inputs)));
  };
  made.loss = [loss](const Tensors& outputs, const Batch& batch) {
    return loss(outputs.front(), batch.target);
  };
  return made;
}

/// Its program has numbers in double, which is what comes out.
Entry mlp() {
  const auto loss = [](const torch::Tensor& output, const torch::Tensor& target) {
    return at::mse_loss(output, target.to(output.scalar_type()));
  };
  return exported("mlp", loss, {"drop"});
}
Entry conv() {
  return exported("conv", oslo::test::cross_entropy);
}
Entry twice() {
  return exported("twice", oslo::test::mean_square);
}
Entry gpt2() {
  return exported("gpt2", oslo::test::cross_entropy);
}
Entry vit() {
  return exported("vit", oslo::test::cross_entropy);
}
/// It drops paths, by a draw of its own.
Entry depth() {
  return exported("depth", oslo::test::cross_entropy, {"mlp.2"});
}

INSTANTIATE_TEST_SUITE_P(Exported, Recomputed, testing::ValuesIn(recomputed({conv, gpt2, vit}, 36)),
                         recomputed_case_name);
INSTANTIATE_TEST_SUITE_P(ExportedWhole, Recomputed,
                         testing::ValuesIn(recomputed({mlp, twice, depth}, 2, in_one_part)),
                         recomputed_case_name);

}  // namespace
}  // namespace catalogue
