// Acceptance A6 with ZeRO: what is computed again is so once a backward, and a backward that throws
// leaves nothing behind, at every stage. Beside plain LibTorch on one device with all ranks' rows.
#include <ATen/record_function.h>

#include <atomic>
#include <stdexcept>

#include "tests/recomputation_test/gpt2.h"
#include "tests/support/counted_calls.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test::recomputed {
namespace {

using test::loss_of_tokens;

double norm_here(const at::RecordFunction& call) {
  if (std::string(call.name()) != "aten::native_layer_norm") return 0;
  const at::Tensor& of = call.inputs()[0].toTensor();
  return of.has_storage() && !of.is_meta() ? 1 : 0;
}
/// Norms that this thread computes.
using Norms = test::CountedCalls<norm_here>;

const std::string kAgain = R"(, "activation_checkpoint": {"enabled": true})";

models::GPT2 make_gpt2() {
  auto model = test::make_seeded(3, [] { return models::GPT2(test::small_gpt2(4)); });
  model->to(torch::kDouble);
  return model;
}

Tensor tokens_of(int step, int rank) {
  return (torch::arange(2 * 7) * (3 + rank) + step).remainder(19).view({2, 7});
}

template <typename Model>
std::unique_ptr<AdamW> optimizer_of(const ParallelModel& parallel, Model& model, int stage) {
  if (stage == 3) return std::make_unique<AdamW>(model->parameters(), adamw());
  return std::make_unique<ZeroOptimizer<AdamW>>(parallel, adamw());
}

/// Of both ranks' rows.
template <typename Model>
void step_of_one_device(Model& plain, AdamW& optimizer, int step) {
  optimizer.zero_grad();
  for (const int rank : {0, 1}) {
    const Tensor tokens = tokens_of(step, rank);
    (loss_of_tokens(plain->forward(tokens), tokens) / 2).backward();
  }
  optimizer.step();
}

template <typename Model>
void expect_weights(Model& model, Model& plain) {
  for (const auto& each : plain->named_parameters()) {
    const Tensor own = full_tensor(model->named_parameters()[each.key()]);
    EXPECT_TRUE(torch::allclose(own, each.value(), 1e-7, 1e-9)) << each.key();
  }
}

/// Trains on two data ranks. `norms`: of a rank's step, but the first, which tries segments.
/// `before`: what is made of another forward's loss before each step.
template <typename Model>
void expect_one_device(const std::function<Model()>& make, int stage, double norms,
                       const std::function<void(int, Model&, const Tensor&)>& before = {}) {
  SCOPED_TRACE(c10::str("stage ", stage));
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    Model plain = make(), model = make();
    ParallelModel parallel = initialize(model, zero_config(kAgain, stage), in(world));
    AdamW reference(plain->parameters(), adamw());
    const auto optimizer = optimizer_of(parallel, model, stage);
    DistributedDataParallel<Model> ddp(model, parallel.mpu().data_group(),
                                       DDPOptions().find_unused_parameters(true));
    for (int step = 0; step < 4; ++step) {
      step_of_one_device(plain, reference, step);
      const Tensor tokens = tokens_of(step, world.rank());
      if (before) {
        optimizer->zero_grad();
        before(step, model, loss_of_tokens(ddp.forward(tokens), tokens));
      }
      optimizer->zero_grad();
      const Norms counted;
      loss_of_tokens(ddp.forward(tokens), tokens).backward();
      if (step > 0) {
        EXPECT_EQ(counted.made(), norms) << "step " << step;
      }
      optimizer->step();
      expect_weights(model, plain);
    }
  });
}

TEST(RecomputedWithZero, OnceABackward) {
  for (const int stage : {1, 2, 3}) {
    expect_one_device<models::GPT2>(make_gpt2, stage, (4 * 2 + 1) + 4 * 2);
  }
}

/// Table, positions and the first two blocks learn nothing, nor does any norm.
TEST(RecomputedWithZero, OnlySegmentsThatBackwardComesTo) {
  const auto make = [] {
    auto model = make_gpt2();
    for (const auto& item : model->named_parameters()) {
      const std::string& name = item.key();
      const bool learns = name.starts_with("h.2.") || name.starts_with("h.3.");
      item.value().requires_grad_(learns && name.find("ln_") == std::string::npos);
    }
    return model;
  };
  for (const int stage : {1, 2, 3}) {
    expect_one_device<models::GPT2>(make, stage, (4 * 2 + 1) + 2 * 2);
  }
}

/// acceptance Z7: the pass ends in a hook by a weight of the second of four blocks.
TEST(RecomputedWithZero, ABackwardThatThrows) {
  for (const int stage : {1, 2, 3}) {
    const auto throws = [](int step, models::GPT2& model, const Tensor& loss) {
      if (step != 2) return loss.backward();
      const Tensor weight = model->h[1]->as<models::GPT2Block>()->ln_2->weight;
      const unsigned hook =
          weight.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("stop"); });
      EXPECT_THROW(loss.backward(), std::exception);
      weight.remove_hook(hook);
    };
    expect_one_device<models::GPT2>(make_gpt2, stage, (4 * 2 + 1) + 4 * 2, throws);
  }
}

struct BlockImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor y = checkpoint(
        [&](const Tensor& each) {
          if (throw_at > 0 && --throw_at == 0) throw std::runtime_error("the second time");
          return torch::gelu(up->forward(norm->forward(each)));
        },
        x);
    return x + down->forward(y);
  }
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(12, 31)),
                    down = register_module("down", torch::nn::Linear(31, 12));
  int throw_at = 0;
};
TORCH_MODULE(Block);

struct BlocksImpl : torch::nn::Module {
  BlocksImpl() {
    for (int i = 0; i < 3; ++i) h->push_back(Block());
    register_module("h", h);
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = table->forward(tokens);
    for (const auto& block : *h) x = block->as<Block>()->forward(x);
    return head->forward(x);
  }
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(19, 12));
  torch::nn::ModuleList h;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(12, 19));
};
TORCH_MODULE(Blocks);

TEST(RecomputedWithZero, Nested) {
  const auto make = [] { return test::make_seeded(3, [] { return Blocks(); }); };
  for (const int stage : {1, 2, 3}) expect_one_device<Blocks>(make, stage, 3 + 3);
}

/// acceptance Z7, inside of a recomputation: the function of the second block throws where it runs
/// again.
TEST(RecomputedWithZero, AFunctionThatThrowsWhereItRunsAgain) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      const auto make = [] { return test::make_seeded(3, [] { return Blocks(); }); };
      Blocks plain = make(), model = make();
      ParallelModel parallel = initialize(model, zero_config("", stage), in(world));
      AdamW reference(plain->parameters(), adamw());
      const auto optimizer = optimizer_of(parallel, model, stage);
      DistributedDataParallel<Blocks> ddp(model, parallel.mpu().data_group());
      for (int step = 0; step < 4; ++step) {
        step_of_one_device(plain, reference, step);
        const Tensor tokens = tokens_of(step, world.rank());
        if (step == 2) {
          model->h[1]->as<Block>()->throw_at = 2;
          const Tensor loss = loss_of_tokens(ddp.forward(tokens), tokens);
          EXPECT_THROW(loss.backward(), std::runtime_error);
          EXPECT_EQ(model->h[1]->as<Block>()->throw_at, 0);
        }
        optimizer->zero_grad();
        loss_of_tokens(ddp.forward(tokens), tokens).backward();
        optimizer->step();
        expect_weights(model, plain);
      }
    });
  }
}

struct InStages {
  int stage;
  std::string keys = "";  ///< further ones of ZeRO
  std::string kind = "zero_bubble";
  std::string more = kAgain;
  int shards = 0;  ///< data ranks that have the weights once, of two such groups; 0: all of two
};

constexpr int64_t kMicro = 4;

/// Trains on two pipeline ranks. Norms that all compute in the last step.
int norms_in_stages(const InStages& how) {
  SCOPED_TRACE(c10::str("stage ", how.stage, how.keys, how.kind, how.more));
  const int replicas = 2 * std::max(how.shards, 1);
  std::atomic<int> norms = 0;
  run_as_threads(2 * replicas, [&](World world) {
    at::set_num_threads(1);
    models::GPT2 plain = make_gpt2(), model = make_gpt2();
    const std::string pipeline =
        R"(, "model_parallelism": {"pipeline_parallel_size": 2, "pipeline_schedule": ")" +
        how.kind + "\"}";
    ParallelModel parallel = initialize(
        model, zero_config(pipeline + how.more, how.stage, how.shards, how.keys), in(world));
    AdamW reference(plain->parameters(), adamw());
    const auto optimizer = optimizer_of(parallel, model, how.stage);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicro));
    const auto rows = [&](int step, int replica) {
      return (torch::arange(kMicro * 7) * (3 + replica) + step).remainder(19).view({kMicro, 7});
    };
    for (int step = 0; step < 3; ++step) {
      reference.zero_grad();
      for (int replica = 0; replica < replicas; ++replica) {
        const Tensor tokens = rows(step, replica);
        (loss_of_tokens(plain->forward(tokens), tokens) / replicas).backward();
      }
      reference.step();
      optimizer->zero_grad();
      const Norms counted;
      schedule.forward_backward_step(
          Tensors{rows(step, parallel.mpu().rank("data"))},
          [&](const Tensors& micro) { return loss_of_tokens(model->forward(micro[0]), micro[0]); });
      if (step == 2) norms += static_cast<int>(counted.made());
      optimizer->step();
      expect_weights(model, plain);
    }
  });
  return norms;
}

/// Both halves of a backward pass use one recomputation.
TEST(RecomputedWithZero, InASplitBackward) {
  for (const InStages& how :
       {InStages{1}, InStages{2}, InStages{3, kGathered}, InStages{3, kOneCopy}}) {
    EXPECT_EQ(norms_in_stages(how), 2 * kMicro * ((4 * 2 + 1) + 4 * 2)) << how.keys;
  }
}

TEST(RecomputedWithZero, UnderOtherSchedules) {
  const std::string budget = R"(, "activation_checkpoint": {"memory": "700KB"})";
  for (const char* const kind : {"1f1b", "interleaved", "zbv", "dualpipev"}) {
    for (const std::string& more : {kAgain, budget}) norms_in_stages({3, kOneCopy, kind, more});
  }
  norms_in_stages({3, kOneCopy, "1f1b", kAgain, 2});
}

}  // namespace
}  // namespace oslo::zero_test::recomputed
