#pragma once

#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "tests/support/parity.h"
#include "tests/support/seeded.h"

// One model on pipeline stages, with or without tensor and data parallelism beside them, against
// the same model on one device, which never saw `initialize`.
namespace pipeline_parity {

using parity::expect_close;
using parity::make_seeded;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

struct Grid {
  int data = 1, tensor = 1, pipeline = 1;
  int size() const { return data * tensor * pipeline; }
  std::string name() const {
    return "dp" + std::to_string(data) + "tp" + std::to_string(tensor) + "pp" +
           std::to_string(pipeline);
  }
};

struct Trial {
  Grid grid;
  std::string kind = "1f1b";
  int micro_batches = 4;
  int chunks = 0;  ///< stages a rank; 0: what the kind has unless told
  int steps = 3;
  /// In place of OSLO's dialect with the grid's sizes.
  std::string config = {};
  bool example = true;
  /// The model's samples see each other: one device, too, runs a micro-batch at a time.
  bool batch_coupled = false;
  /// The schedule may refuse the model, by name and on every rank, at its first step.
  bool may_refuse = false;
  double clip = 0.5;
  bool sgd = false;        ///< in place of AdamW
  bool shares = false;     ///< by `ZeroOptimizer`, as stages 1 and 2 have it
  bool evaluates = false;  ///< also: the loss of the first batch at the end, without gradients
  std::function<void(oslo::InitializeOptions&)> tweak = {};
};

inline int chunks_of(const std::string& kind, int chunks) {
  return chunks == 0 ? oslo::pipeline::default_chunks(kind) : chunks;
}

inline std::string config_of(const Grid& grid, const std::string& kind = "1f1b", int chunks = 0) {
  return c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", grid.tensor,
                  R"(, "pipeline_parallel_size": )", grid.pipeline, R"(, "pipeline_schedule": ")",
                  kind, R"(", "num_model_chunks": )", chunks_of(kind, chunks), "}}");
}

/// How many forward passes a rank holds at a time, at most, by its list.
inline int peak(const oslo::pipeline::Schedule& schedule, int rank) {
  int held = 0, most = 0;
  for (const oslo::pipeline::Action& action : schedule.actions[rank]) {
    if (action.pass == oslo::pipeline::Pass::forward) most = std::max(most, ++held);
    held -= action.pass == oslo::pipeline::Pass::backward ||
            action.pass == oslo::pipeline::Pass::backward_weight;
  }
  return most;
}

/// Of the boundaries between a stage and the next, those that two ranks share: by the rank of the
/// lower stage, and by that of the higher one.
inline std::pair<int, int> boundaries_of(const oslo::pipeline::Schedule& schedule, int rank) {
  int below = 0, above = 0;
  for (int stage = 1; stage < schedule.stages(); ++stage) {
    const int from = schedule.rank_of_stage[stage - 1], to = schedule.rank_of_stage[stage];
    if (from == to) continue;
    below += from == rank;
    above += to == rank;
  }
  return {below, above};
}

/// All of a tensor of this rank's stage, whatever its tensor ranks hold of it.
inline Tensor whole_here(const Tensor& tensor) {
  return oslo::gather_all(oslo::value_of(tensor)).local.detach();
}

inline void expect_gradients(const torch::nn::Module& model, const torch::nn::Module& reference) {
  parity::for_each_parameter(
      model, reference, [&](const std::string& name, const Tensor& mine, const Tensor& expected) {
        if (!oslo::is_here(mine)) {
          EXPECT_FALSE(mine.grad().defined()) << name;
          return;
        }
        ASSERT_EQ(mine.grad().defined(), expected.grad().defined()) << name;
        if (!mine.grad().defined()) return;
        // Gradients of half parameters are in fp32.
        const Tensor own = whole_here(mine.grad());
        expect_close(own, expected.grad().to(own.scalar_type()), "gradient of " + name);
      });
}

/// Rows that `parts` divides.
inline std::vector<Tensors> divided(const Tensors& batch, int parts) {
  std::vector<Tensors> found(parts);
  for (const Tensor& tensor : batch) {
    const auto split = tensor.tensor_split(parts, 0);
    for (int i = 0; i < parts; ++i) found[i].push_back(split[i]);
  }
  return found;
}

/// Module::to would turn integers and masks into numbers as well.
inline void make_double(torch::nn::Module& model) {
  for (auto tensors : {model.parameters(), model.buffers()}) {
    for (Tensor& tensor : tensors) {
      if (tensor.is_floating_point()) tensor.set_data(tensor.detach().to(torch::kDouble));
    }
  }
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(bool sgd,
                                                               const Tensors& parameters) {
  if (sgd) {
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(1e-2).momentum(0.9));
  }
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
}

/// The same, made of what `initialize` returned: data ranks share its states out.
inline std::unique_ptr<torch::optim::Optimizer> make_sharing_optimizer(
    bool sgd, const oslo::ParallelModel& parallel) {
  using torch::optim::AdamW, torch::optim::SGD;
  const auto plain = make_optimizer(sgd, {torch::zeros({1})});
  if (sgd) {
    return std::make_unique<oslo::ZeroOptimizer<SGD>>(
        parallel, static_cast<const torch::optim::SGDOptions&>(plain->defaults()));
  }
  return std::make_unique<oslo::ZeroOptimizer<AdamW>>(
      parallel, static_cast<const torch::optim::AdamWOptions&>(plain->defaults()));
}

inline void expect_buffers(const torch::nn::Module& model, const torch::nn::Module& reference) {
  const auto buffers = model.named_buffers();
  for (const auto& item : reference.named_buffers()) {
    expect_close(oslo::full_tensor(buffers[item.key()]), item.value(), "buffer " + item.key());
  }
}

/// What a test may look at on every rank after the last step.
struct Outcome {
  const oslo::ParallelModel& parallel;
  const oslo::PipelineSchedule& schedule;
  const oslo::StepResult& last;
  const oslo::World& world;
};

/// `make()` builds a model (any TORCH_MODULE holder), `batch(step)` a batch, as tensors with a row
/// a sample, `loss(model, micro_batch)` a mean over the rows. Returns whether it was trained.
template <typename Make, typename MakeBatch, typename Loss>
bool expect_parity(const Trial& setup, const Make& make, const MakeBatch& batch, const Loss& loss,
                   const std::function<void(const Outcome&)>& after = {}) {
  std::atomic<int> refused = 0;
  oslo::run_as_threads(setup.grid.size(), [&](oslo::World world) {
    at::set_num_threads(1);
    auto reference = make_seeded(7, make);
    auto model = make_seeded(7, make);
    make_double(*reference);
    make_double(*model);
    std::vector<Tensors> batches;
    for (int step = 0; step < setup.steps; ++step) {
      batches.push_back(make_seeded(100 + step, [&] { return batch(step); }));
    }
    auto optimizer = make_optimizer(setup.sgd, model->parameters());  // made before
    const auto reference_optimizer = make_optimizer(setup.sgd, reference->parameters());
    oslo::InitializeOptions how;
    how.world = world;
    if (setup.example) how.example_inputs = [&] { loss(model, batches.front()); };
    if (setup.tweak) setup.tweak(how);
    const auto config = oslo::Config::parse(
        setup.config.empty() ? config_of(setup.grid, setup.kind, setup.chunks) : setup.config);
    oslo::ParallelModel parallel = oslo::initialize(model, config, how);
    if (setup.shares) optimizer = make_sharing_optimizer(setup.sgd, parallel);
    const oslo::MPU& mpu = parallel.mpu();
    oslo::PipelineSchedule schedule(
        parallel, oslo::PipelineOptions().num_microbatches(setup.micro_batches).kind(setup.kind));
    const auto own = [&](const Tensors& whole) {
      Tensors part;
      for (const Tensor& tensor : whole) {
        part.push_back(tensor.tensor_split(mpu.get_data_parallel_world_size(),
                                           0)[mpu.get_data_parallel_rank()]);
      }
      return part;
    };
    const int parts = setup.batch_coupled ? setup.micro_batches : 1;
    const auto loss_of_own = [&](const Tensors& whole) {
      const torch::NoGradGuard no_grad;
      double sum = 0;
      for (const Tensors& part : divided(own(whole), parts)) {
        sum += loss(reference, part).template item<double>() / parts;
      }
      return sum;
    };
    const auto loss_of_micro_batch = [&](const Tensors& micro) { return loss(model, micro); };
    oslo::StepResult result;
    for (const Tensors& whole : batches) {
      optimizer->zero_grad();
      reference_optimizer->zero_grad();
      double expected_own = 0;
      for (const Tensors& part : divided(whole, parts * setup.grid.data)) {
        const Tensor expected = loss(reference, part) / (parts * setup.grid.data);
        expected.backward();
        expected_own += expected.template item<double>();
      }
      if (setup.grid.data > 1) expected_own = loss_of_own(whole);
      try {
        result = schedule.forward_backward_step(own(whole), loss_of_micro_batch);
      } catch (const oslo::Error& error) {
        const bool known =
            std::string(error.what()).find("cannot run this model") != std::string::npos;
        if (!setup.may_refuse || !known) throw;
        ++refused;
        return;
      }
      ASSERT_FALSE(oslo::is_placed(result.loss));
      EXPECT_NEAR(result.loss.item<double>(), expected_own, 1e-9);
      expect_gradients(*model, *reference);
      const double norm = torch::nn::utils::clip_grad_norm_(reference->parameters(), setup.clip);
      EXPECT_NEAR(parallel.clip_grad_norm_(setup.clip), norm, 1e-6 * norm);
      optimizer->step();
      reference_optimizer->step();
    }
    parity::expect_weights(*model, *reference);
    // Otherwise one device sees other parts of the batches at a time, or parts of other replicas.
    const bool same_parts = setup.batch_coupled && setup.grid.data == 1;
    if (same_parts) expect_buffers(*model, *reference);
    if (setup.evaluates && (same_parts || !setup.batch_coupled)) {
      model->eval();
      reference->eval();
      result = schedule.forward_backward_step(own(batches[0]), loss_of_micro_batch,
                                              oslo::StepOptions().forward_only(true));
      EXPECT_NEAR(result.loss.item<double>(), loss_of_own(batches[0]), 1e-9);
    }
    if (after) after({parallel, schedule, result, world});
  });
  EXPECT_TRUE(refused == 0 || refused == setup.grid.size()) << refused << " ranks refused it";
  return refused == 0;
}

}  // namespace pipeline_parity
