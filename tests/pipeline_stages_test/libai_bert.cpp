// LiBai's BERT over pipeline stages by its own configuration: naive, 1F1B with 8 micro-batches and
// recomputation. Reference: the same classes of torch::nn's layers on one device, which never saw
// initialize.
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <map>
#include <string>

#include "tests/models/libai_bert.h"
#include "tests/support/initialized.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using libai_bert::BertConfig;
using libai_bert::BertForPreTraining;
using pipeline_parity::expect_gradients;

struct Job {
  int data = 1, tensor = 1, pipeline = 2;
  bool by_hand = false;  ///< of the library's parallel layers
  std::string dist = {};
  int micro_batches = 8;
  int rows = 19;  ///< of each data rank; more than a micro-batch's
};

std::string config_of(const Job& job) {
  return c10::str(R"({"train": {"dist": {"data_parallel_size": )", job.data,
                  R"(, "tensor_parallel_size": )", job.tensor, R"(, "pipeline_parallel_size": )",
                  job.pipeline, R"(, "pipeline_num_layers": 4)", job.dist, "},",
                  R"("activation_checkpoint": {"enabled": true}, "num_accumulation_steps": )",
                  job.micro_batches, "}}");
}

void expect_stages(const ParallelModel& parallel, int last) {
  std::map<std::string, int> stage;
  for (const PlanEntry& entry : parallel.plan().entries) stage[entry.parameter] = entry.stage;
  EXPECT_EQ(stage.at("bert.pos_embed"), 0);
  EXPECT_EQ(stage.at("bert.embeddings.tokentype_embeddings.weight"), 0);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(stage.at(c10::str("bert.encoders.", i, ".dense.weight")),
              parallel.get_layer_stage_id(i));
  }
  for (const char* name : {"bert.final_layernorm.weight", "bert.pooler.dense.weight",
                           "cls_head.lm_transform.bias", "cls_head.seq_relationship.weight"}) {
    EXPECT_EQ(stage.at(name), last) << name;
  }
}

void trains_as_plain_libtorch(const Job& job) {
  run_as_threads(job.data * job.tensor * job.pipeline, [&](World world) {
    at::set_num_threads(1);
    BertConfig plain, own;
    std::optional<MPU> by_hand;
    if (job.by_hand) {
      by_hand.emplace(
          world,
          MpuOptions().tensor_parallel_size(job.tensor).pipeline_parallel_size(job.pipeline));
      own.mpu = &*by_hand;
    }
    auto reference = make_seeded(7, [&] { return BertForPreTraining(plain); });
    auto model = make_seeded(7, [&] { return BertForPreTraining(own); });
    reference->to(torch::kDouble);
    model->to(torch::kDouble);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
    const auto drawn = [&](int step) {
      return make_seeded(100 + step, [&] { return libai_bert::batch(plain, job.data * job.rows); });
    };
    InitializeOptions how = in(world);
    const auto shown = drawn(0);
    how.example_inputs = [&] { model->loss(shown); };
    const ParallelModel parallel = initialize(model, Config::parse(config_of(job)), how);
    const MPU& mpu = parallel.mpu();
    expect_stages(parallel, job.pipeline - 1);
    const auto& up = model->bert->encoders[0]->as<libai_bert::TransformerLayer>()->up->weight;
    if (is_here(up) && job.tensor > 1) {
      EXPECT_LT(up.size(0), 2 * plain.hidden);
    }
    PipelineSchedule schedule(parallel);
    for (int step = 0; step < 2; ++step) {
      const auto whole = drawn(step);
      std::vector<at::Tensor> rows;
      for (const at::Tensor& tensor : whole) {
        rows.push_back(tensor.tensor_split(job.data)[mpu.get_data_parallel_rank()]);
      }
      optimizer.zero_grad();
      reference_optimizer.zero_grad();
      const at::Tensor expected = reference->loss(whole);
      expected.backward();
      int calls = 0;
      const StepResult result = schedule.forward_backward_step(rows, [&](const auto& micro) {
        ++calls;
        return model->loss(micro);
      });
      EXPECT_EQ(calls, job.micro_batches);
      const torch::NoGradGuard no_grad;
      EXPECT_NEAR(result.loss.item<double>(),
                  job.data == 1 ? expected.item<double>() : reference->loss(rows).item<double>(),
                  1e-9);
      expect_gradients(*model, *reference);
      optimizer.step();
      reference_optimizer.step();
    }
    parity::expect_weights(*model, *reference);
  });
}

TEST(LiBaiBert, NaivePipelineIsPlainLibTorch) {
  Job job;
  job.dist = R"(, "pipeline_schedule": "naive")";
  job.micro_batches = 1;
  trains_as_plain_libtorch(job);
}

/// `train.num_accumulation_steps = 8`, `train.activation_checkpoint.enabled = True`.
TEST(LiBaiBert, OneForwardOneBackwardOfEightMicroBatchesIsPlainLibTorch) {
  trains_as_plain_libtorch({});
}

TEST(LiBaiBert, CustomStageIdsIn3DArePlainLibTorch) {
  Job job;
  job.data = job.tensor = 2;
  job.dist = R"(, "custom_pipeline_stage_id": [0, 0, 0, 1])";
  trains_as_plain_libtorch(job);
}

/// Of libai.layers' like: `Linear(..., parallel="col", layer_idx=i)`.
TEST(LiBaiBert, OfParallelLayersByHandWithALayerIdxIsPlainLibTorch) {
  Job job;
  job.by_hand = true;
  job.tensor = 2;
  trains_as_plain_libtorch(job);
  job.tensor = 3;
  job.micro_batches = 2;
  job.dist = R"(, "custom_pipeline_stage_id": [0, 1, 1, 1])";
  trains_as_plain_libtorch(job);
}

}  // namespace
}  // namespace oslo::test
