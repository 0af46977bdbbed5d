// The program of README.md, on 2 tensor x 2 data ranks, beside what LibTorch alone does.
#include <array>

#include "tests/support/parity.h"
#include "tests/support/temporary_directory.h"
#include "tutorials/models/gpt2.h"

namespace gpt2 {
namespace {

using torch::nn::functional::cross_entropy;

GPT2Config readme_config() {
  GPT2Config config;
  config.vocab_size = 11;
  config.n_positions = 6;
  config.n_embd = 8;
  config.n_layer = config.n_head = 2;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0.0;
  return config;
}

GPT2LMHeadModel made() {
  GPT2LMHeadModel model = parity::make_seeded(1, [] { return GPT2LMHeadModel(readme_config()); });
  model->to(torch::kDouble);
  return model;
}

TEST(Readme, ItsProgramStepsAsOneDeviceDoes) {
  const int64_t vocab = readme_config().vocab_size;
  const torch::Tensor tokens = torch::arange(4 * 6).view({4, 6}) % vocab;
  const torch::Tensor labels = torch::arange(1, 4 * 6 + 1) * 3 % vocab;
  const oslo::test::TemporaryDirectory folder;

  GPT2LMHeadModel one = made();
  torch::optim::AdamW one_steps(one->parameters());
  const auto whole = cross_entropy(one->forward(tokens).view({-1, vocab}), labels);
  whole.backward();
  torch::nn::utils::clip_grad_norm_(one->parameters(), 1.0);
  one_steps.step();

  std::array<double, 4> losses{};
  oslo::run_as_threads(4, [&](oslo::World world) {
    GPT2LMHeadModel model = made();
    torch::optim::AdamW optimizer(model->parameters());
    oslo::InitializeOptions how;
    how.world = world;
    auto parallel = oslo::initialize(
        model,
        oslo::Config::parse(
            R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2}})"),
        how);
    const oslo::MPU& mpu = parallel.mpu();
    oslo::DistributedDataParallel<GPT2LMHeadModel> ddp(model, mpu.get_data_parallel_group());
    const auto part = [&](torch::Tensor batch) {
      return batch.tensor_split(mpu.get_data_parallel_world_size())[mpu.get_data_parallel_rank()];
    };
    auto loss = cross_entropy(ddp.forward(part(tokens)).view({-1, vocab}), part(labels));
    loss.backward();
    parallel.clip_grad_norm_(1.0);
    optimizer.step();
    parallel.save_parallelized(folder / "merged", oslo::SaveOptions().merge_checkpoints(true));

    losses[world.rank()] = oslo::full_tensor(loss).item<double>();
    parity::expect_weights(*model, *one, parity::kTrained);
  });
  EXPECT_NEAR((losses[0] + losses[1] + losses[2] + losses[3]) / 4, whole.item<double>(), 1e-9);

  GPT2LMHeadModel loaded = made();
  oslo::load_state(*loaded, folder / "merged");
  parity::expect_weights(*loaded, *one, parity::kTrained);
}

}  // namespace
}  // namespace gpt2
