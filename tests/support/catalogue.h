#pragma once

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/bf16.h"
#include "tests/support/catalogue_amp.h"
#include "tests/support/catalogue_entry.h"
#include "tests/support/gather_record.h"
#include "tests/support/one_device.h"
#include "tests/support/parity.h"

// Untouched models in parallel against one device: training, evaluation, autocast, and how often
// something had to be gathered.
namespace catalogue {

struct Mesh {
  int tensor, data;
  bool example = true;    ///< hand initialize a forward to plan by
  bool sequence = false;  ///< "sequence_parallel" in the config
  std::string mode = {};  ///< Colossal-AI's: "sequence", "2d", "2.5d" (of depth 2), "3d"
  std::string name() const {
    return (data > 1 ? "dp" + std::to_string(data) : "") + "tp" + std::to_string(tensor) +
           (example ? "" : "_by_structure") + (sequence ? "_sequence" : "") +
           (mode.empty() ? "" : "_mode_" + (mode == "2.5d" ? "2_5d" : mode));
  }
};

inline std::string mode_config(const std::string& mode, int size) {
  return R"({"parallel": {"tensor": {"size": )" + std::to_string(size) + R"(, "mode": ")" + mode +
         (mode == "2.5d" ? R"(", "depth": 2}}})" : R"("}}})");
}

/// The last is what a model gets that cannot be planned by example: guesses from names and shapes,
/// of which a wrong one may cost a gather, never a number.
inline const std::vector<Mesh> kMeshes{{2, 1}, {3, 1}, {4, 1}, {2, 2}, {3, 1, false}};

inline oslo::ParallelModel parallelize(const Entry& entry, const Mesh& mesh,
                                       const oslo::World& world,
                                       const std::shared_ptr<torch::nn::Module>& model,
                                       const Batch& example) {
  oslo::InitializeOptions how;
  how.world = world;
  how.cut_own_parameters = true;
  if (mesh.example) how.example_inputs = [&] { entry.forward(*model, example.inputs); };
  auto config = oslo::Config::parse(mesh.mode.empty() ? parity::tensor_parallel(mesh.tensor)
                                                      : mode_config(mesh.mode, mesh.tensor));
  if (mesh.sequence) config.set("sequence_parallel=true");
  return oslo::initialize(model, config, how);
}

inline void expect_outputs(const Tensors& outputs, const Tensors& expected,
                           const std::string& when) {
  ASSERT_EQ(outputs.size(), expected.size()) << when;
  for (size_t i = 0; i < outputs.size(); ++i) {
    parity::expect_close(oslo::full_tensor(outputs[i]).detach(), expected[i].detach(),
                         when + " output " + std::to_string(i));
  }
}

inline void expect_buffers(const torch::nn::Module& model, const torch::nn::Module& reference) {
  const auto buffers = model.named_buffers();
  for (const auto& item : reference.named_buffers()) {
    const torch::Tensor* mine = buffers.find(item.key());
    ASSERT_NE(mine, nullptr) << item.key();
    parity::expect_close(oslo::full_tensor(*mine), item.value(), "buffer " + item.key());
  }
}

/// Three optimizer steps, then evaluation, in fp64: only the order of sums may differ.
inline void train_and_evaluate(const Entry& entry, const Mesh& mesh, const oslo::World& world) {
  constexpr int kSteps = 3;
  std::vector<Batch> batches;
  for (int step = 0; step < kSteps; ++step) {
    batches.push_back(make_batch(entry, step, torch::kFloat64));
  }
  OneDevice one(entry, mesh.data);
  const auto model = make_model(entry, torch::kFloat64);
  const auto optimizer = make_optimizer(entry, model->parameters());
  auto parallel = parallelize(entry, mesh, world, model, batches.front());
  const int64_t part = parallel.mpu().get_data_parallel_rank();
  oslo::DistributedDataParallel<ForwardOf> ddp(std::make_shared<ForwardOf>(entry, model),
                                               parallel.mpu().get_data_parallel_group());
  GatherCalls gathers;
  std::string table;
  const auto counted = [&](const std::function<void()>& run) {
    parallel.count(run);
    const oslo::Plan plan = parallel.plan();
    for (const oslo::GatherEntry& gather : plan.gathers) gathers[gather.operation] += gather.calls;
    table += plan.to_string();
  };

  for (int step = 0; step < kSteps; ++step) {
    const Batch own = one.part_of(batches[step], part);
    const Tensors expected = one.forward_backward(batches[step], part);
    optimizer->zero_grad();
    Tensors outputs;
    const auto train = [&] {
      outputs = ddp.forward(own.inputs);
      entry.loss(outputs, own).backward();
    };
    step == 0 ? counted(train) : train();
    expect_outputs(outputs, expected, "step " + std::to_string(step));
    parity::expect_gradients(*model, one.model());
    optimizer->step();
    one.step();
  }
  parity::expect_weights(*model, one.model());
  // The other data ranks' own statistics are replaced by the first one's at the next forward.
  if (!entry.batch_coupled || part == 0) expect_buffers(*model, one.model());

  model->eval();
  one.model().eval();
  const Batch own = one.part_of(batches[0], part);
  {
    const torch::NoGradGuard no_grad;
    Tensors outputs;
    counted([&] { outputs = ddp.forward(own.inputs); });
    expect_outputs(outputs, one.forward(batches[0], part), "no_grad");
    expect_buffers(*model, one.model());
  }
  {
    const c10::InferenceMode inference;
    expect_outputs(ddp.forward(own.inputs), one.forward(batches[0], part), "inference mode");
  }
  parallel.check();
  if (world.rank() == 0 && mesh.mode.empty())
    expect_recorded_gathers(entry.name, mesh.name(), gathers, table);
}

/// One step's forward and backward; the outputs.
inline Tensors forward_backward(const Entry& entry, torch::nn::Module& model, const Batch& batch,
                                bool autocast) {
  Tensors outputs;
  {
    const auto on = autocast ? std::make_unique<oslo::test::Autocast>() : nullptr;
    outputs = entry.forward(model, batch.inputs);
  }
  Tensors wide;
  for (const torch::Tensor& output : outputs) wide.push_back(output.to(torch::kFloat));
  entry.loss(wide, batch).backward();
  return outputs;
}

/// All gradients as one vector: of the parameters that have one in `reference`.
inline torch::Tensor gradients_of(const torch::nn::Module& model,
                                  const torch::nn::Module& reference) {
  const auto parameters = model.named_parameters();
  Tensors gradients;
  for (const auto& item : reference.named_parameters()) {
    if (!item.value().grad().defined()) continue;
    gradients.push_back(oslo::full_tensor(parameters[item.key()].grad()).flatten());
  }
  return torch::cat(gradients);
}

/// One step of an fp32 model under autocast, on both sides.
inline void autocast_step(const Entry& entry, const Mesh& mesh, const oslo::World& world) {
  const Batch batch = make_batch(entry, 0, torch::kFloat32);
  const auto reference = make_model(entry, torch::kFloat32);
  const auto model = make_model(entry, torch::kFloat32);
  const auto parallel = parallelize(entry, mesh, world, model, batch);
  if (!entry.runs_in_bf16) {
    EXPECT_ANY_THROW(forward_backward(entry, *reference, batch, true));
    return;
  }
  const auto fp32 = make_model(entry, torch::kFloat32);
  Tensors exact = forward_backward(entry, *fp32, batch, false);
  Tensors expected = forward_backward(entry, *reference, batch, true);
  Tensors actual = forward_backward(entry, *model, batch, true);
  ASSERT_EQ(actual.size(), expected.size());
  exact.push_back(gradients_of(*fp32, *reference));
  expected.push_back(gradients_of(*reference, *reference));
  actual.push_back(gradients_of(*model, *reference));
  for (size_t i = 0; i < actual.size(); ++i) {
    oslo::test::expect_rounded_alike(
        actual[i], expected[i], exact[i], mesh.tensor,
        "autocast, " + (i + 1 < actual.size() ? "output " + std::to_string(i) : "gradients"),
        entry.decides ? 0.25 : 0);
  }
}

/// One step by the config's "amp" over ranks.
inline void amp_over_ranks(const Entry& entry, const Mesh& mesh) {
  if (!entry.runs_in_bf16) return;
  const torch::Dtype type = amp_type(entry);
  oslo::run_as_threads(mesh.tensor, [&](const oslo::World& world) {
    at::set_num_threads(1);
    const Batch batch = make_batch(entry, 0, torch::kFloat32);
    const auto fp32 = make_model(entry, torch::kFloat32),
               plain = make_model(entry, torch::kFloat32);
    const auto model = make_model(entry, torch::kFloat32);
    oslo::InitializeOptions how;
    how.world = world;
    how.cut_own_parameters = true;
    if (mesh.example) how.example_inputs = [&] { entry.forward(*model, batch.inputs); };
    oslo::initialize(model, oslo::Config::parse(amp_config(type, mesh.tensor)), how);
    const auto all_of = [&](const Step& step, const torch::nn::Module& of) {
      Tensors all = step.outputs;
      all.push_back(gradients_of(of, *plain));
      return all;
    };
    const Step exact_step = amp_step(entry, *fp32, batch, std::nullopt);
    const Step expected_step = amp_step(entry, *plain, batch, type);
    const Step step = amp_step(entry, *model, batch, std::nullopt);
    const Tensors exact = all_of(exact_step, *fp32), expected = all_of(expected_step, *plain),
                  actual = all_of(step, *model);
    for (size_t i = 0; i < actual.size(); ++i) {
      oslo::test::expect_rounded_alike(
          actual[i], expected[i], exact[i], mesh.tensor,
          i + 1 < actual.size() ? "output " + std::to_string(i) : "gradients",
          entry.decides ? 0.25 : 0);
    }
  });
}

/// Everything, for one model on one mesh, with ranks as threads.
inline void expect_entry(const Entry& entry, const Mesh& mesh) {
  oslo::run_as_threads(mesh.tensor * mesh.data, [&](oslo::World world) {
    at::set_num_threads(1);
    train_and_evaluate(entry, mesh, world);
    autocast_step(entry, mesh, world);
  });
}

/// One of `meshes` for each model in turn, all of them under OSLO_TEST_PAIRS. `first`: so many
/// models of other programs have had theirs.
inline std::vector<std::tuple<Entry (*)(), Mesh>> in_turn(const std::vector<Entry (*)()>& entries,
                                                          const std::vector<Mesh>& meshes,
                                                          size_t first) {
  std::vector<std::tuple<Entry (*)(), Mesh>> chosen;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (std::getenv("OSLO_TEST_PAIRS") == nullptr) {
      chosen.emplace_back(entries[i], meshes[(first + i) % meshes.size()]);
      continue;
    }
    for (const Mesh& mesh : meshes) chosen.emplace_back(entries[i], mesh);
  }
  return chosen;
}

/// `initialize` refuses the model with `reason`, on every rank.
inline void expect_refused(const Entry& entry, const Mesh& mesh, const std::string& reason) {
  std::vector<std::string> errors(mesh.tensor * mesh.data);
  oslo::run_as_threads(static_cast<int>(errors.size()), [&](const oslo::World& world) {
    at::set_num_threads(1);
    const auto model = make_model(entry, torch::kFloat64);
    const Batch batch = make_batch(entry, 0, torch::kFloat64);
    try {
      parallelize(entry, mesh, world, model, batch);
    } catch (const oslo::Error& error) {
      errors[world.rank()] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_NE(error.find(reason), std::string::npos) << error;
}

inline std::string entry_name(const testing::TestParamInfo<Entry (*)()>& info) {
  return info.param().name;
}

/// A file of the catalogue is its entries and one line:
///   INSTANTIATE_TEST_SUITE_P(Family, Catalogue, Combine(Values(entries...), ValuesIn(kMeshes)),
///                            case_name);
class Catalogue : public testing::TestWithParam<std::tuple<Entry (*)(), Mesh>> {};

TEST_P(Catalogue, EqualsOneDevice) {
  expect_entry(std::get<0>(GetParam())(), std::get<1>(GetParam()));
}

/// On one rank each model, over ranks each on one of the meshes.
TEST_P(Catalogue, ComputesInTheTypeAskedFor) {
  const auto [entry, mesh] = GetParam();
  const Entry of = entry();
  if (mesh.name() == kMeshes.front().name()) amp_on_one_rank(of);
  if (mesh.name() == kMeshes[of.name.size() % kMeshes.size()].name()) amp_over_ranks(of, mesh);
}

inline std::string case_name(const testing::TestParamInfo<Catalogue::ParamType>& info) {
  return std::get<0>(info.param)().name + "_" + std::get<1>(info.param).name();
}

}  // namespace catalogue
