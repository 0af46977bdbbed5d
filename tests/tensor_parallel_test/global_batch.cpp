// A global batch, over data and tensor ranks at once, in a model that initialize cut: gradients are
// those of one device on the whole batch, without DistributedDataParallel. Where the model's own
// context has to know of every operator, it is refused.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <string>
#include <vector>

#include "tests/models/gpt2.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

models::GPT2 small() {
  models::GPT2Options options;
  options.vocabulary = 23;
  options.hidden = 15;
  options.heads = 3;
  models::GPT2 model(options);
  model->to(torch::kDouble);
  return model;
}

at::Tensor tokens() {
  return torch::randint(23, {5, 7}, torch::kLong);
}

at::Tensor loss_of(models::GPT2& model, const at::Tensor& ids) {
  const at::Tensor logits = model->forward(ids);
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.roll(1, 1).flatten());
}

at::Tensor by_rows(const at::Tensor& ids, const MPU& mpu) {
  return distribute(ids, mpu.mesh({"data", "tensor"}), {sbp::split(0), sbp::broadcast});
}

void expect_gradients_of_the_whole(int data, int tensor, const std::string& more, bool example) {
  run_as_threads(data * tensor, [&](World world) {
    at::set_num_threads(1);
    auto reference = make_seeded(3, small), model = make_seeded(3, small);
    const at::Tensor ids = make_seeded(4, tokens);
    InitializeOptions how = in(world);
    if (example) how.example_inputs = [&] { loss_of(model, ids); };
    const auto config = Config::parse(
        c10::str(R"({"model_parallelism": {"tensor_parallel_size": )", tensor, "}", more, "}"));
    const ParallelModel parallel = initialize(model, config, how);
    const at::Tensor expected = loss_of(reference, ids);
    expected.backward();
    const at::Tensor loss = loss_of(model, by_rows(ids, parallel.mpu()));
    loss.backward();
    EXPECT_NEAR(full_tensor(loss).item<double>(), expected.item<double>(), 1e-9);
    parity::expect_gradients(*model, *reference);
  });
}

TEST(GlobalBatch, HasTheGradientsOfOneDevice) {
  for (const bool example : {false, true}) {
    expect_gradients_of_the_whole(2, 2, "", example);
    expect_gradients_of_the_whole(3, 2, "", example);
    expect_gradients_of_the_whole(2, 3, "", example);
  }
  expect_gradients_of_the_whole(2, 1, "", false);
  expect_gradients_of_the_whole(1, 2, "", false);
}

/// What a plan says of weights is of their own mesh: numbers are the same without it.
TEST(GlobalBatch, HasThemBesideAPlanOfTheSequence) {
  expect_gradients_of_the_whole(2, 2, R"(, "sequence_parallel": true)", true);
}

std::vector<std::string> refused(const std::string& config) {
  return errors_of(4, [&](World world) {
    auto model = make_seeded(3, [] { return models::GPT2(models::GPT2Options()); });
    const at::Tensor ids = make_seeded(4, tokens);
    const ParallelModel parallel = initialize(model, Config::parse(config), in(world));
    const torch::NoGradGuard no_grad;
    loss_of(model, by_rows(ids, parallel.mpu()));
  });
}

TEST(GlobalBatch, IsRefusedWhereTheModelsContextHasToKnow) {
  for (const char* config :
       {R"({"parallel": {"tensor": {"size": 2, "mode": "1d"}}, "strict": true})",
        R"({"parallel": {"tensor": {"size": 2, "mode": "1d"}}, "amp": {"enabled": true}})",
        R"({"parallel": {"tensor": {"size": 2, "mode": "1d"}},
            "activation_checkpoint": {"enabled": true}})",
        R"({"parallel": {"pipeline": 2}})"}) {
    SCOPED_TRACE(config);
    EXPECT_THAT(refused(config), Each(AllOf(HasSubstr("values of two meshes"),
                                            HasSubstr("takes values of its own mesh alone"),
                                            HasSubstr("each data rank's own rows"))));
  }
}

}  // namespace
}  // namespace oslo::test
