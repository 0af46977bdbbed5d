// What is left of a parallel model after its death: no group, no mesh, no descriptor and no
// mapping, however it was used. The test goes through kinds of use, on every carrier of one host.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallelizers/pipeline/schedule/kinds.h"
#include "parallelizers/placement/carrier/mark.h"
#include "tests/support/seeded.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;
using test::make_seeded;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::Tensor;

constexpr int64_t kWords = 11, kWidth = 6, kRows = 12;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    words = register_module(
        "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, kWidth).padding_idx(9)));
    up = register_module("up", torch::nn::Linear(kWidth, 9));
    down = register_module("down", torch::nn::Linear(9, kWidth));
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    dropout = register_module("dropout", torch::nn::Dropout(0.1));
    head = register_module("head", torch::nn::Linear(kWidth, kWords));
    scale = register_parameter("scale", torch::ones({3, kWidth}).t());  // a leaf that is a view
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = words->forward(ids) * scale.sum(1);
    x = norm->forward(x + down->forward(dropout->forward(torch::gelu(up->forward(x), "tanh"))));
    return head->forward(x);
  }
  torch::nn::Embedding words = nullptr;
  torch::nn::Linear up = nullptr, down = nullptr, head = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Dropout dropout = nullptr;
  Tensor scale;
};
TORCH_MODULE(Net);

Tensor ids() {
  return torch::arange(kRows) % kWords;
}

Tensor loss_of(const Tensor& logits, const Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits, labels);
}

struct Grid {
  int data = 1, tensor = 1, pipeline = 1;
  int size() const { return data * tensor * pipeline; }
};

/// What may not outlive its model.
struct Watch {
  std::vector<std::weak_ptr<Group>> groups;
  std::vector<std::weak_ptr<const Mesh>> meshes;
  std::vector<c10::weak_intrusive_ptr<c10d::ProcessGroup>> carriers;

  void add(const MPU& mpu) {
    for (const auto& group : mpu.groups()) {
      groups.emplace_back(group);
      carriers.emplace_back(group->process_group());
    }
    meshes.emplace_back(mpu.tensor_mesh());
  }
  int64_t left() const {
    const auto alive = [](const auto& weak) { return !weak.expired(); };
    return std::count_if(groups.begin(), groups.end(), alive) +
           std::count_if(meshes.begin(), meshes.end(), alive) +
           std::count_if(carriers.begin(), carriers.end(), alive);
  }
};

struct Scene {
  World world;
  Grid grid;
  std::vector<std::string> settings;
  Watch& watch;
  bool example = false;

  InitializeOptions how(const std::function<void()>& forward = {}) const {
    InitializeOptions options;
    options.world = world;
    if (example) options.example_inputs = forward;
    return options;
  }
  Config config() const {
    Config config = Config::parse(
        c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", grid.tensor,
                 R"(, "pipeline_parallel_size": )", grid.pipeline, "}}"));
    for (const std::string& setting : settings) config.set(setting);
    return config;
  }
  ParallelModel parallel(Net& model) const {
    ParallelModel made = initialize(model, config(), how([&] { model->forward(ids()); }));
    watch.add(made.mpu());
    return made;
  }
  Net net() const {
    return make_seeded(3, [] { return Net(); });
  }
};

void step(Net& model) {
  loss_of(model->forward(ids()), ids()).backward();
}

template <typename Optimizer, typename Options>
void train(const Scene& scene, const Options& options) {
  Net model = scene.net();
  Optimizer optimizer(model->parameters(), options);
  auto parallel = scene.parallel(model);
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    step(model);
    parallel.clip_grad_norm_(1.0);
    optimizer.step();
  }
}

struct Use {
  std::string name;
  std::function<void(const Scene&)> use;
  Grid grid = {1, 2, 1};
  std::vector<std::string> settings = {};
};

struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    context->get_saved_variables();
    return {gradients[0] * 2};
  }
};

void throw_in(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception&) {  // every rank's own, at the same place
    return;
  }
  FAIL() << "nothing was thrown";
}

void pipeline_step(const Scene& scene, const std::string& kind, bool fails = false) {
  Net model = scene.net();
  torch::optim::AdamW optimizer(model->parameters());
  auto parallel = scene.parallel(model);
  PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4).kind(kind));
  const auto run = [&] {
    schedule.forward_backward_step({ids(), ids()}, [&](const std::vector<Tensor>& micro) {
      const Tensor logits = model->forward(micro[0]);
      if (fails) throw std::runtime_error("a forward that fails");
      return loss_of(logits, micro[1]);
    });
  };
  if (fails) return throw_in(run);
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    run();
    parallel.clip_grad_norm_(1.0);
    optimizer.step();
  }
}

/// Settings of a config.
std::vector<std::string> stages_of(const std::string& kind) {
  return {"model_parallelism.pipeline_schedule=" + kind,
          c10::str("model_parallelism.num_model_chunks=", pipeline::default_chunks(kind))};
}

std::vector<Use> uses() {
  std::vector<Use> all;
  const auto add = [&](std::string name, std::function<void(const Scene&)> use, Grid grid = {1, 2},
                       std::vector<std::string> settings = {}) {
    all.push_back({std::move(name), std::move(use), grid, std::move(settings)});
  };
  add("nothing", [](const Scene& scene) {
    Net model = scene.net();
    scene.parallel(model);
  });
  add("the handle dies first", [](const Scene& scene) {
    Net model = scene.net();
    { scene.parallel(model); }
    step(model);
  });
  add("the model dies before its handle", [](const Scene& scene) {
    std::unique_ptr<ParallelModel> parallel;
    {
      Net model = scene.net();
      parallel = std::make_unique<ParallelModel>(scene.parallel(model));
      step(model);
    }
    parallel->plan().to_string();
  });
  add("an evaluation", [](const Scene& scene) {
    const torch::NoGradGuard no_grad;
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->eval();
    full_tensor(model->forward(ids()));
  });
  add("inference mode", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->eval();
    const c10::InferenceMode inference;
    full_tensor(model->forward(ids()));
  });
  add("a forward without backward", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->forward(ids());
  });
  add("SGD", [](const Scene& scene) {
    train<torch::optim::SGD>(scene, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  add("AdamW", [](const Scene& scene) {
    train<torch::optim::AdamW>(scene, torch::optim::AdamWOptions(1e-3).amsgrad(true));
  });
  add("Adagrad", [](const Scene& scene) {
    train<torch::optim::Adagrad>(scene, torch::optim::AdagradOptions(1e-3));
  });
  add("RMSprop", [](const Scene& scene) {
    train<torch::optim::RMSprop>(scene, torch::optim::RMSpropOptions(1e-3).centered(true));
  });
  add("an output that outlives the model", [](const Scene& scene) {
    Tensor output;
    {
      Net model = scene.net();
      const auto parallel = scene.parallel(model);
      output = model->forward(ids());
    }
    output.sum().item();
  });
  add("a parameter and its gradient that outlive the model", [](const Scene& scene) {
    Tensor weight, gradient;
    {
      Net model = scene.net();
      const auto parallel = scene.parallel(model);
      step(model);
      weight = model->up->weight;
      gradient = model->down->weight.grad();
    }
    gradient.mul_(2);
    full_tensor(weight);
  });
  add("a gradient that outlives its parameter and is used", [](const Scene& scene) {
    Tensor gradient;
    {
      Net model = scene.net();
      const auto parallel = scene.parallel(model);
      step(model);
      gradient = model->down->weight.grad();
    }
    full_tensor(gradient + gradient);
    gradient.add_(gradient);
  });
  add("a graph that is kept", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    const Tensor loss = loss_of(model->forward(ids()), ids());
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
  add("second derivatives", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->eval();
    const Tensor loss = loss_of(model->forward(ids()), ids());
    const auto gradients =
        torch::autograd::grad({loss}, {model->up->weight, model->words->weight}, {},
                              /*retain_graph=*/true, /*create_graph=*/true);
    (gradients[0].pow(2).sum() + gradients[1].pow(2).sum()).backward();
  });
  add("gradients with a graph", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->eval();
    loss_of(model->forward(ids()), ids()).backward({}, {}, /*create_graph=*/true);
    // Otherwise a gradient, its graph and the parameter hold each other, as LibTorch warns.
    model->zero_grad();
  });
  add("hooks and retained gradients", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->up->weight.register_hook([](const Tensor& gradient) { return gradient * 2; });
    const Tensor hidden = model->up->forward(model->words->forward(ids()));
    hidden.retain_grad();
    hidden.register_hook([](const Tensor& gradient) { return gradient * 2; });
    model->down->forward(hidden).sum().backward();
    EXPECT_TRUE(hidden.grad().defined());
  });
  add("a function of one's own", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    const Tensor weight = Doubled::apply(model->up->weight);
    const Tensor hidden = Doubled::apply(model->words->forward(ids()).matmul(weight.t()));
    hidden.sum().backward();
  });
  add("views, writes and copies", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    Tensor hidden = model->up->forward(model->words->forward(ids()));
    hidden.slice(1, 0, 2).mul_(2);
    hidden.select(0, 1).sum().backward();
    const Tensor copy = model->up->weight.clone().detach().requires_grad_(true);
    copy.sum().backward();
    const torch::NoGradGuard no_grad;
    model->up->weight.mul_(0.5);
    model->up->weight.set_data(model->up->weight.detach().clone());
  });
  add("another type", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    step(model);
    model->zero_grad();
    model->to(torch::kDouble);
    step(model);
  });
  add("parameters that are frozen", [](const Scene& scene) {
    Net model = scene.net();
    model->up->weight.requires_grad_(false);
    const auto parallel = scene.parallel(model);
    model->down->weight.requires_grad_(false);
    step(model);
    model->down->weight.requires_grad_(true);
    step(model);
  });
  add("tied weights", [](const Scene& scene) {
    Net model = scene.net();
    model->head->weight = model->words->weight;
    const auto parallel = scene.parallel(model);
    step(model);
  });
  add("a copy of a layer", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->up->clone());
    copy->forward(model->words->forward(ids())).sum().backward();
  });
  add("autocast", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const Tensor loss = loss_of(model->forward(ids()), ids());
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    loss.backward();
  });
  add("a forward that throws", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    throw_in([&] { model->down->forward(model->forward(ids())); });
  });
  add("a backward that throws", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    const Tensor waits = model->up->forward(model->words->forward(ids()));
    const Tensor hidden = model->up->forward(model->words->forward(ids()));
    hidden.register_hook([](const Tensor& gradient) -> Tensor {
      OSLO_CHECK(false, "a hook that fails");
      return gradient;
    });
    throw_in([&] { (waits.sum() + model->down->forward(hidden).sum()).backward(); });
  });
  add("a plan that does not fit", [](const Scene& scene) {
    Net model = scene.net();
    Config config = scene.config();
    config.set(R"(plan={"nowhere": "column"})");
    throw_in([&] { initialize(model, config, scene.how([&] { model->forward(ids()); })); });
  });
  add("gradients accumulated, kernels fused",
      [](const Scene& scene) {
        Net model = scene.net();
        const auto parallel = scene.parallel(model);
        for (int i = 0; i < 3; ++i) step(model);
        torch::gelu(model->up->forward(model->words->forward(ids())), "tanh");
        model->up->forward(model->words->forward(ids()));  // no GeLU comes
      },
      {1, 2, 1}, {"kernel_fusion=true"});
  add("a cache in a member", [](const Scene& scene) {
    Net model = scene.net();
    const Tensor cache = model->register_buffer("cache", torch::zeros({kRows, 9}));
    const auto parallel = scene.parallel(model);
    model->scale = model->up->forward(model->words->forward(ids()));
    cache.slice(0, 0, 3).copy_(model->scale.slice(0, 0, 3));
    cache.sum().backward();
  });
  add("other layers",
      [](const Scene& scene) {
        auto model = make_seeded(3, [] {
          return torch::nn::Sequential(torch::nn::Conv1d(4, 6, 1), torch::nn::GroupNorm(2, 6),
                                       torch::nn::LSTM(5, 6));
        });
        const auto forward = [&] {
          const Tensor x = model[1]->as<torch::nn::GroupNorm>()->forward(
              model[0]->as<torch::nn::Conv1d>()->forward(torch::ones({2, 4, 5})));
          return std::get<0>(model[2]->as<torch::nn::LSTM>()->forward(x)).sum();
        };
        const ParallelModel parallel =
            initialize(model, scene.config(), scene.how([&] { forward(); }));
        scene.watch.add(parallel.mpu());
        forward().backward();
      },
      {1, 2, 1}, {R"(plan={"0": "column", "2": "column"})"});
  add("random numbers of a rank's own", [](const Scene& scene) {
    Net model = scene.net();
    InitializeOptions how = scene.how([&] { model->forward(ids()); });
    how.random_mode = RandomMode::per_rank;
    const ParallelModel parallel = initialize(model, scene.config(), how);
    scene.watch.add(parallel.mpu());
    step(model);
  });
  add("constructed as shapes", [](const Scene& scene) {
    auto model = make_seeded(3, [] {
      const DeferredInit guard;
      return Net();
    });
    const auto parallel = scene.parallel(model);
    step(model);
  });
  add("verified", [](const Scene& scene) {
    Net model = scene.net(), reference = scene.net();
    const auto parallel = scene.parallel(model);
    model->eval();
    reference->eval();
    verify(parallel, reference, ids());
  });
  add("several handles of one model", [](const Scene& scene) {
    Net model = scene.net();
    auto parallel = scene.parallel(model);
    ParallelModel other = parallel;
    step(model);
    other.count([&] { step(model); });
  });
  add("made ordinary", [](const Scene& scene) {
    Net model = scene.net();
    auto parallel = scene.parallel(model);
    step(model);
    parallel.deparallelize();
    step(model);
  });
  add("another layout", [](const Scene& scene) {
    Net model = scene.net();
    auto parallel = scene.parallel(model);
    step(model);
    parallel.reshard(Config::parse(R"({"model_parallelism": {"enable": true}})"));
    scene.watch.add(parallel.mpu());
    step(model);
  });
  add("saved and loaded", [](const Scene& scene) {
    static const test::TemporaryDirectory folder;
    const std::string path = folder / "saved";
    Net model = scene.net();
    torch::optim::AdamW optimizer(model->parameters());
    auto parallel = scene.parallel(model);
    step(model);
    optimizer.step();
    parallel.save_parallelized(path, SaveOptions().optimizer(&optimizer));
    parallel.from_parallelized(path, LoadOptions().optimizer(&optimizer));
    parallel.save_async(path)->wait();
    parallel.save_async(path);
  });
  add("layers by hand", [](const Scene& scene) {
    const MPU mpu(scene.world, MpuOptions().tensor_parallel_size(scene.grid.tensor));
    scene.watch.add(mpu);
    nn::VocabParallelEmbedding words(kWords, kWidth, mpu);
    nn::ColumnParallelLinear up(kWidth, 9, mpu);
    nn::RowParallelLinear down(9, kWidth, mpu);
    down->forward(up->forward(words->forward(ids()))).sum().backward();
    up->reset_parameters();
    up->clone();
    mpu.gather(mpu.scatter(torch::ones({2, 5}, torch::requires_grad()))).sum().backward();
  });
  add("tensors by hand", [](const Scene& scene) {
    const MPU mpu(scene.world, MpuOptions().tensor_parallel_size(scene.grid.tensor));
    scene.watch.add(mpu);
    const Tensor leaf = torch::ones({5, 7}, torch::requires_grad());
    const Tensor x = distribute(leaf, mpu.tensor_mesh(), {Placement::shard(1)});
    const Tensor own = (x * 2).detach().requires_grad_(true);
    (own * x).sum().backward();
    EXPECT_TRUE(own.grad().defined());
    full_tensor(x).sum().backward();
  });
  add("data parallel",
      [](const Scene& scene) {
        Net model = scene.net();
        torch::optim::AdamW optimizer(model->parameters());
        auto parallel = scene.parallel(model);
        DistributedDataParallel<Net> ddp(model, parallel.mpu().get_data_parallel_group(),
                                         DDPOptions().find_unused_parameters(true));
        {
          const auto guard = ddp.no_sync();
          loss_of(ddp.forward(ids()), ids()).backward();
        }
        for (int i = 0; i < 2; ++i) {
          loss_of(ddp.forward(ids()), ids()).backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        loss_of(ddp.forward(ids()), ids()).backward();
      },
      {2, 2, 1});
  add("data parallel, reset",
      [](const Scene& scene) {
        Net model = scene.net();
        auto parallel = scene.parallel(model);
        auto ddp = std::make_unique<DistributedDataParallel<Net>>(
            model, parallel.mpu().get_data_parallel_group(),
            DDPOptions().gradient_as_bucket_view(true));
        loss_of(ddp->forward(ids()), ids()).backward();
        const Tensor output = ddp->forward(ids());
        ddp.reset();
      },
      {2, 2, 1});
  add("data parallel alone",
      [](const Scene& scene) {
        Net model = scene.net();
        auto parallel = scene.parallel(model);
        DistributedDataParallel<Net> ddp(model, parallel.mpu().get_data_parallel_group());
        loss_of(ddp.forward(ids()), ids()).backward();
      },
      {2, 1, 1});
  add("an evaluation over stages",
      [](const Scene& scene) {
        Net model = scene.net();
        const auto parallel = scene.parallel(model);
        const torch::NoGradGuard no_grad;
        model->eval();
        full_tensor(model->forward(ids()));
      },
      {1, 1, 2});
  for (const std::string& kind : pipeline::schedule_kinds()) {
    const auto settings = stages_of(kind);
    for (const bool fails : {false, true}) {
      add(
          kind + (fails ? ", a forward that throws" : ""),
          [kind, fails](const Scene& scene) { pipeline_step(scene, kind, fails); }, {1, 1, 2},
          settings);
    }
    add(
        kind + " x tensor", [kind](const Scene& scene) { pipeline_step(scene, kind); }, {1, 2, 2},
        settings);
  }
  return all;
}

/// Descriptors, and mappings of memory that ranks share.
struct Held {
  int64_t descriptors = 0, mappings = 0;
};

Held held_now() {
  Held held;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    ++held.descriptors;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    held.mappings += line.find("memfd:oslo") != std::string::npos ||
                     line.find("/dev/shm/oslo") != std::string::npos;
  }
  return held;
}

void run(const Use& use, const std::string& backend, bool example) {
  SCOPED_TRACE(c10::str(use.name, ", ", backend, example ? ", with an example" : ""));
  run_as_threads(use.grid.size(), [&](World world) {
    at::set_num_threads(1);
    Watch watch;
    std::vector<std::string> settings = use.settings;
    settings.push_back("backend=" + backend);
    use.use({world, use.grid, settings, watch, example});
    EXPECT_EQ(watch.left(), 0) << "of " << watch.groups.size() << " groups and their carriers";
    world.barrier();
  });
}

class NothingIsLeft : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Of, NothingIsLeft, ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

TEST_P(NothingIsLeft, OfAModelHoweverItWasUsed) {
  run(uses().front(), GetParam(), true);  // what a process opens once
  const Held before = held_now();
  const bool shm = GetParam() == "shm";
  for (const Use& use : uses()) {
    if (!shm && use.grid.pipeline > 1) continue;  // below over both: connections take their time
    for (const bool example : {false, true}) {
      if (example && !shm) continue;
      run(use, GetParam(), example);
      const Held after = held_now();
      EXPECT_EQ(after.mappings, 0) << use.name;
      EXPECT_EQ(after.descriptors, before.descriptors) << use.name;
    }
  }
}

/// A job that goes on for as long as all its ranks do. `check` throws on a rank that is to fail.
struct Job {
  std::string name;
  Grid grid;
  std::vector<std::string> settings;
  std::function<void(const Scene&, const std::function<void()>& check)> run;
};

std::vector<Job> jobs() {
  std::vector<Job> all;
  all.push_back({"tensor", {1, 2, 1}, {}, [](const Scene& scene, const auto& check) {
                   Net model = scene.net();
                   torch::optim::AdamW optimizer(model->parameters());
                   auto parallel = scene.parallel(model);
                   while (true) {
                     const Tensor loss = loss_of(model->forward(ids()), ids());
                     check();
                     loss.backward();
                     optimizer.step();
                   }
                 }});
  all.push_back({"data", {2, 1, 1}, {}, [](const Scene& scene, const auto& check) {
                   Net model = scene.net();
                   auto parallel = scene.parallel(model);
                   DistributedDataParallel<Net> ddp(model,
                                                    parallel.mpu().get_data_parallel_group());
                   while (true) {
                     const Tensor loss = loss_of(ddp.forward(ids()), ids());
                     check();
                     loss.backward();
                   }
                 }});
  for (const std::string& kind : pipeline::schedule_kinds()) {
    all.push_back(
        {kind, {1, 1, 2}, stages_of(kind), [kind](const Scene& scene, const auto& check) {
           Net model = scene.net();
           auto parallel = scene.parallel(model);
           PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4).kind(kind));
           while (true) {
             check();
             schedule.forward_backward_step({ids(), ids()}, [&](const std::vector<Tensor>& micro) {
               return loss_of(model->forward(micro[0]), micro[1]);
             });
           }
         }});
  }
  return all;
}

TEST_P(NothingIsLeft, OfTheGroupsOfARankThatThrewAndLivesOnSoThatOthersAreToldAtOnce) {
  for (const Job& job : jobs()) {
    SCOPED_TRACE(job.name);
    std::latch told(1);
    const auto body = [&](World world) {
      at::set_num_threads(1);
      Watch watch;
      const bool fails = world.rank() == 1;
      std::vector<std::string> settings = job.settings;
      settings.push_back("backend=" + GetParam());
      int steps = 0;
      std::string error;
      try {
        job.run({world, job.grid, settings, watch, false}, [&] {
          if (fails && ++steps == 3) throw std::runtime_error("a rank that fails alone");
        });
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
      EXPECT_EQ(watch.left(), 0);
      if (fails) {
        EXPECT_EQ(error, "a rank that fails alone");
        told.wait();  // it lives on
      } else {
        EXPECT_THAT(error, HasSubstr(GetParam() == "shm" ? "rank 1 has " : "failed"));
        EXPECT_THAT(error, AllOf(Not(HasSubstr("waited")), Not(HasSubstr("imed out"))));
        told.count_down();
      }
    };
    run_as_threads(job.grid.size(), body, std::chrono::seconds(20));
  }
}

int models() {
  const char* const given = std::getenv("OSLO_TEST_MODELS");
  return given == nullptr ? 20 : std::stoi(given);
}

int64_t resident() {
  int64_t all = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(ModelLifetime, ASweepOfModelsStaysFlat) {
  const auto all = uses();
  const auto& trained =
      *std::find_if(all.begin(), all.end(), [](const Use& use) { return use.name == "AdamW"; });
  for (int i = 0; i < 5; ++i) run(trained, "shm", false);
  const Held before = held_now();
  const int64_t memory = resident();
  for (int i = 0; i < models(); ++i) run(trained, "shm", false);
  const Held after = held_now();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.mappings, before.mappings);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what is freed
  // A group alone has 1.5 MB. 2,000 models were seen to leave 32 KB, which the allocator had taken.
  EXPECT_LT(resident() - memory, 4 << 20) << "after " << models() << " models";
#endif
}

}  // namespace
}  // namespace oslo
