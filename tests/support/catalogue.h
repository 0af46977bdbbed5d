#pragma once

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gather_record.h"
#include "tests/support/parity.h"

// Untouched models in parallel against one device: training, evaluation, autocast, and how often
// something had to be gathered.
namespace catalogue {

using Tensors = std::vector<torch::Tensor>;

struct Batch {
  Tensors inputs;
  torch::Tensor target;  ///< as all inputs, one row (dimension 0) a sample
};

struct Mesh {
  int tensor, data;
  bool example = true;  ///< hand initialize a forward to plan by
  std::string name() const {
    return (data > 1 ? "dp" + std::to_string(data) : "") + "tp" + std::to_string(tensor) +
           (example ? "" : "_by_structure");
  }
};

/// The last is what a model gets that cannot be planned by example: guesses from names and shapes,
/// of which a wrong one may cost a gather, never a number.
inline const std::vector<Mesh> kMeshes{{2, 1}, {3, 1}, {4, 1}, {2, 2}, {3, 1, false}};

struct Entry {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<Batch(int step)> batch;
  std::function<Tensors(torch::nn::Module&, const Tensors&)> forward;
  std::function<torch::Tensor(const Tensors& outputs, const Batch&)> loss;
  bool sgd = false;
  /// Samples of a batch see each other (batch norm in training, a loss over batch statistics).
  /// Ranks of data parallelism see their own rows only; so does the reference then: it computes the
  /// parts one after the other, adds up gradients, and keeps the buffers of the first part, which
  /// are those that DistributedDataParallel hands to all.
  bool batch_coupled = false;
  /// In bf16 a sum over ranks is rounded once a rank, the one device's once; what is a rounding
  /// apart after a layer is a few roundings (2^-8) apart after the last. Relative, in norm. 0: one
  /// device cannot run the model in bf16 either.
  double bf16 = 0.05;
};

/// An entry from the model's own types: `Model` is what TORCH_MODULE makes.
template <typename Model>
Entry entry(std::string name, std::function<Model()> make, std::function<Batch(int)> batch,
            std::function<Tensors(typename Model::ContainedType&, const Tensors&)> forward,
            std::function<torch::Tensor(const Tensors&, const Batch&)> loss) {
  Entry made;
  made.name = std::move(name);
  made.make = [make] { return std::shared_ptr<torch::nn::Module>(make().ptr()); };
  made.batch = std::move(batch);
  made.forward = [forward](torch::nn::Module& model, const Tensors& inputs) {
    return forward(dynamic_cast<typename Model::ContainedType&>(model), inputs);
  };
  made.loss = std::move(loss);
  return made;
}

/// Gives DistributedDataParallel one class for all entries.
struct ForwardOf : torch::nn::Module {
  ForwardOf(const Entry& of, const std::shared_ptr<torch::nn::Module>& of_model)
      : entry(of), model(register_module("model", of_model)) {}
  Tensors forward(const Tensors& inputs) { return entry.forward(*model, inputs); }
  const Entry& entry;
  std::shared_ptr<torch::nn::Module> model;
};

inline torch::Tensor floating_to(const torch::Tensor& tensor, torch::Dtype dtype) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(dtype) : tensor;
}

/// Module::to would turn integers and masks into numbers as well.
inline std::shared_ptr<torch::nn::Module> make_model(const Entry& entry, torch::Dtype dtype) {
  auto model = parity::make_seeded(7, entry.make);
  for (auto tensors : {model->parameters(), model->buffers()}) {
    for (torch::Tensor& tensor : tensors) tensor.set_data(floating_to(tensor.detach(), dtype));
  }
  return model;
}

inline Batch make_batch(const Entry& entry, int step, torch::Dtype dtype) {
  Batch batch = parity::make_seeded(100 + step, [&] { return entry.batch(step); });
  for (torch::Tensor& input : batch.inputs) input = floating_to(input, dtype);
  batch.target = floating_to(batch.target, dtype);
  return batch;
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Entry& entry,
                                                               const Tensors& parameters) {
  if (entry.sgd) {
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(1e-2).momentum(0.9));
  }
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
}

inline oslo::ParallelModel parallelize(const Entry& entry, const Mesh& mesh,
                                       const oslo::World& world,
                                       const std::shared_ptr<torch::nn::Module>& model,
                                       const Batch& example) {
  oslo::InitializeOptions how;
  how.world = world;
  how.cut_own_parameters = true;
  if (mesh.example) how.example_inputs = [&] { entry.forward(*model, example.inputs); };
  return oslo::initialize(model, oslo::Config::parse(parity::tensor_parallel(mesh.tensor)), how);
}

/// The model on one device.
class OneDevice {
 public:
  OneDevice(const Entry& entry, int64_t parts)
      : entry_(entry),
        parts_(parts),
        model_(make_model(entry, torch::kFloat64)),
        optimizer_(make_optimizer(entry, model_->parameters())) {}

  torch::nn::Module& model() { return *model_; }

  Batch part_of(const Batch& batch, int64_t part) const {
    Batch own;
    for (const torch::Tensor& input : batch.inputs) {
      own.inputs.push_back(input.tensor_split(parts_, 0)[part]);
    }
    own.target = batch.target.tensor_split(parts_, 0)[part];
    return own;
  }

  /// The outputs that belong to `part`, after the gradients of the whole batch were computed.
  Tensors forward_backward(const Batch& batch, int64_t part) {
    optimizer_->zero_grad();
    if (!entry_.batch_coupled) {
      const Tensors outputs = entry_.forward(*model_, batch.inputs);
      entry_.loss(outputs, batch).backward();
      return rows_of(outputs, part);
    }
    const Tensors before = copies(model_->buffers());
    Tensors outputs;
    for (int64_t i = parts_ - 1; i >= 0; --i) {
      restore(before);
      const Batch own = part_of(batch, i);
      const Tensors computed = entry_.forward(*model_, own.inputs);
      (entry_.loss(computed, own) / double(parts_)).backward();
      if (i == part) outputs = computed;
    }
    return outputs;
  }

  Tensors forward(const Batch& batch, int64_t part) {
    if (entry_.batch_coupled) return entry_.forward(*model_, part_of(batch, part).inputs);
    return rows_of(entry_.forward(*model_, batch.inputs), part);
  }

  void step() { optimizer_->step(); }

 private:
  Tensors rows_of(const Tensors& outputs, int64_t part) const {
    Tensors rows;
    for (const torch::Tensor& output : outputs) {
      rows.push_back(output.tensor_split(parts_, 0)[part]);
    }
    return rows;
  }

  static Tensors copies(const Tensors& tensors) {
    Tensors copied;
    for (const torch::Tensor& tensor : tensors) copied.push_back(tensor.clone());
    return copied;
  }

  void restore(const Tensors& before) {
    const torch::NoGradGuard no_grad;
    Tensors buffers = model_->buffers();
    for (size_t i = 0; i < before.size(); ++i) buffers[i].copy_(before[i]);
  }

  const Entry& entry_;
  int64_t parts_;
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

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
  if (world.rank() == 0) expect_recorded_gathers(entry.name, mesh.name(), gathers, table);
}

/// bf16 autocast on the CPU for this thread, as users switch it on around a forward.
class Autocast {
 public:
  Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

inline void expect_near_in_norm(const torch::Tensor& actual, const torch::Tensor& expected,
                                double relative, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const double difference = (actual - expected).norm().item<double>();
  EXPECT_LE(difference, relative * expected.norm().item<double>()) << what;
}

/// One step of an fp32 model under autocast on both sides.
inline void autocast_step(const Entry& entry, const Mesh& mesh, const oslo::World& world) {
  const Batch batch = make_batch(entry, 0, torch::kFloat32);
  const auto reference = make_model(entry, torch::kFloat32);
  const auto model = make_model(entry, torch::kFloat32);
  const auto parallel = parallelize(entry, mesh, world, model, batch);
  const auto run = [&](torch::nn::Module& which) {
    Tensors outputs;
    {
      const Autocast autocast;
      outputs = entry.forward(which, batch.inputs);
    }
    Tensors wide;
    for (const torch::Tensor& output : outputs) wide.push_back(output.to(torch::kFloat));
    entry.loss(wide, batch).backward();
    return outputs;
  };
  if (entry.bf16 == 0) {
    EXPECT_ANY_THROW(run(*reference));
    return;
  }
  const Tensors expected = run(*reference), outputs = run(*model);
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].scalar_type(), expected[i].scalar_type()) << "autocast output " << i;
    expect_near_in_norm(oslo::full_tensor(outputs[i]).detach().to(torch::kFloat),
                        expected[i].detach().to(torch::kFloat), entry.bf16,
                        "autocast output " + std::to_string(i));
  }
  Tensors gradients, expected_gradients;
  const auto parameters = model->named_parameters();
  for (const auto& item : reference->named_parameters()) {
    if (!item.value().grad().defined()) continue;
    expected_gradients.push_back(item.value().grad().flatten());
    gradients.push_back(oslo::full_tensor(parameters[item.key()].grad()).flatten());
  }
  expect_near_in_norm(torch::cat(gradients), torch::cat(expected_gradients), entry.bf16,
                      "autocast gradients");
}

/// Everything, for one model on one mesh, with ranks as threads.
inline void expect_entry(const Entry& entry, const Mesh& mesh) {
  oslo::run_as_threads(mesh.tensor * mesh.data, [&](oslo::World world) {
    at::set_num_threads(1);
    train_and_evaluate(entry, mesh, world);
    autocast_step(entry, mesh, world);
  });
}

/// A file of the catalogue is its entries and one line:
///   INSTANTIATE_TEST_SUITE_P(Family, Catalogue, Combine(Values(entries...), ValuesIn(kMeshes)),
///                            case_name);
class Catalogue : public testing::TestWithParam<std::tuple<Entry (*)(), Mesh>> {};

TEST_P(Catalogue, EqualsOneDevice) {
  expect_entry(std::get<0>(GetParam())(), std::get<1>(GetParam()));
}

inline std::string case_name(const testing::TestParamInfo<Catalogue::ParamType>& info) {
  return std::get<0>(info.param)().name + "_" + std::get<1>(info.param).name();
}

}  // namespace catalogue
