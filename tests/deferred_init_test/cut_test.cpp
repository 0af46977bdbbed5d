// initialize computes this rank's part alone: the values of an ordinary construction, however the
// model is cut.
#include "deferred_models.h"
#include "tests/support/pipeline_parity.h"

namespace deferred_models {
namespace {

/// A tied table, a fused query-key-value layer, a convolution, buffers.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : wte(register_module("wte", torch::nn::Embedding(29, 24))),
        qkv(register_module("qkv", torch::nn::Linear(24, 72))),
        proj(register_module("proj", torch::nn::Linear(24, 24))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({24})))),
        head(register_module("head",
                             torch::nn::Linear(torch::nn::LinearOptions(24, 29).bias(false)))) {
    head->weight = wte->weight;
    mask = register_buffer("mask", torch::ones({5, 5}, torch::kBool).tril());
    scale = register_parameter("scale", torch::randn({24}).mul(0.1));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      if (parameter.dim() == 2) parameter.normal_(0, 0.2);
    }
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = wte(tokens);
    const auto parts = qkv(x).view({tokens.size(0), tokens.size(1), 3, 4, 6}).unbind(2);
    Tensor score = parts[0].transpose(1, 2).matmul(parts[1].permute({0, 2, 3, 1}));
    score = score.masked_fill(mask.logical_not(), -1e9).softmax(-1);
    x = x + proj(score.matmul(parts[2].transpose(1, 2)).transpose(1, 2).flatten(2));
    return head(norm(x) + scale);
  }
  torch::nn::Embedding wte;
  torch::nn::Linear qkv, proj;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
  Tensor mask, scale;
};
TORCH_MODULE(Net);

Net plain_net() {
  return make_seeded(5, [] { return Net(); });
}

Net deferred_net() {
  return make_seeded(5, [] {
    const oslo::DeferredInit guard;
    return Net();
  });
}

Tensor loss_of(Net& net, const Tensor& tokens) {
  return torch::cross_entropy_loss(net->forward(tokens).flatten(0, 1), tokens.flatten());
}

void expect_parts(const Net& net, const Net& plain) {
  for (const auto& item : plain->named_parameters()) {
    const Tensor parameter = net->named_parameters()[item.key()];
    EXPECT_FALSE(oslo::is_deferred(parameter)) << item.key();
    EXPECT_TRUE(torch::equal(oslo::full_tensor(parameter.detach()), item.value())) << item.key();
  }
  EXPECT_TRUE(torch::equal(oslo::full_tensor(net->mask), plain->mask));
}

TEST(DeferredCut, TensorRanksHaveTheirPartsAndTrain) {
  const Net reference = plain_net();
  const Tensor tokens = torch::arange(10).view({2, 5});
  for (const int ranks : {2, 3, 4}) {
    for (const bool example : {false, true}) {
      oslo::run_as_threads(ranks, [&](oslo::World world) {
        Net net = deferred_net();
        Net plain = plain_net();
        oslo::InitializeOptions how;
        how.world = world;
        if (example) how.example_inputs = [&] { net->forward(tokens); };
        const auto config = oslo::Config::parse(pipeline_parity::config_of({1, ranks, 1}));
        torch::optim::SGD optimizer(net->parameters(), 0.1);
        const auto parallel = oslo::initialize(net, config, how);
        const auto plan = parallel.plan().to_json();
        expect_parts(net, plain);
        torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
        const Tensor loss = loss_of(net, tokens), expected = loss_of(plain, tokens);
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
        loss.backward(), expected.backward();
        optimizer.step(), plain_optimizer.step();
        for (const auto& item : plain->named_parameters()) {
          const Tensor whole = oslo::full_tensor(net->named_parameters()[item.key()].detach());
          EXPECT_TRUE(torch::allclose(whole, item.value(), 1e-5, 1e-6)) << item.key();
        }
        // The plan is that of the model with content.
        oslo::InitializeOptions of_plain;
        of_plain.world = world;
        Net ordinary = plain_net();
        if (example) of_plain.example_inputs = [&] { ordinary->forward(tokens); };
        const auto planned = oslo::initialize(ordinary, config, of_plain);
        EXPECT_EQ(plan, planned.plan().to_json());
      });
    }
  }
}

TEST(DeferredCut, StagesHaveTheirOwn) {
  for (const pipeline_parity::Grid grid :
       {pipeline_parity::Grid{1, 1, 2}, pipeline_parity::Grid{1, 2, 2}}) {
    oslo::run_as_threads(grid.size(), [&](oslo::World world) {
      const Net plain = plain_net();
      Net net = deferred_net();
      oslo::InitializeOptions how;
      how.world = world;
      how.stages.set_pipeline_stage_id(net->wte, 0)
          .set_pipeline_stage_id(net->qkv, 0)
          .set_pipeline_stage_id(net->mask, 0)
          .set_pipeline_stage_id(net->proj, 1)
          .set_pipeline_stage_id(net->norm, 1)
          .set_pipeline_stage_id(net->scale, 1)
          .set_pipeline_stage_id(net->head, 1);
      const auto parallel =
          oslo::initialize(net, oslo::Config::parse(pipeline_parity::config_of(grid)), how);
      expect_parts(net, plain);
      int elsewhere = 0;
      for (const Tensor& parameter : net->parameters()) elsewhere += !parameter.has_storage();
      EXPECT_GT(elsewhere, 0);
    });
  }
}

TEST(DeferredCut, LayersByHandAreFilledAsParts) {
  oslo::run_as_threads(3, [&](oslo::World world) {
    const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(3));
    for (const char* parallel : {"col", "row"}) {
      const auto make = [&] {
        return oslo::nn::Linear(oslo::nn::LinearOptions(19, 23).parallel(parallel), mpu);
      };
      const auto plain = make_seeded(5, make);
      const auto deferred = make_seeded(5, [&] {
        const oslo::DeferredInit guard;
        return make();
      });
      EXPECT_TRUE(oslo::is_deferred(deferred->weight));
      oslo::materialize(deferred);
      for (const char* name : {"weight", "bias"}) {
        const Tensor actual = oslo::local_tensor(deferred->named_parameters()[name].detach());
        const Tensor expected = oslo::local_tensor(plain->named_parameters()[name].detach());
        EXPECT_TRUE(torch::equal(actual, expected)) << parallel << " " << name;
      }
    }
  });
}

TEST(DeferredCut, RanksThatWouldDrawOtherwiseAreRefused) {
  oslo::run_as_threads(2, [&](oslo::World world) {
    Net net = make_seeded(world.rank(), [] {
      const oslo::DeferredInit guard;
      return Net();
    });
    oslo::InitializeOptions how;
    how.world = world;
    try {
      oslo::initialize(net, oslo::Config::parse(pipeline_parity::config_of({1, 2, 1})), how);
      ADD_FAILURE() << "not refused";
    } catch (const oslo::Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("initial value differs between ranks"));
    }
    EXPECT_TRUE(oslo::is_deferred(net->wte->weight));
  });
}

}  // namespace
}  // namespace deferred_models
