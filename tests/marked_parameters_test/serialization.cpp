// torch::save knows one process: it refuses whatever is cut, wherever it is pickled. torch::load of
// one process's file takes this rank's part.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <filesystem>
#include <sstream>

#include "tests/support/error_of.h"
#include "tests/support/placed_values.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<Tensor>;

/// What has no parallel layer: it keeps its class, and with it LibTorch's own save and load.
struct CutModulesImpl : torch::nn::Module {
  CutModulesImpl() {
    own = register_parameter("own", torch::randn({5, 3}));
    conv = register_module("conv", torch::nn::Conv2d(3, 7, 3));
    table = register_module("table", torch::nn::Embedding(11, 6));
    attention = register_module("attention", torch::nn::MultiheadAttention(6, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(7));
  }
  Tensor forward(const Tensor& images, const Tensor& tokens) {
    const Tensor x = norm(conv(images)).mean({2, 3}), y = table(tokens).transpose(0, 1);
    return x.pow(2).sum() + std::get<0>(attention(y, y, y)).pow(2).sum() + own.pow(2).sum();
  }
  Tensor own;
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Embedding table{nullptr};
  torch::nn::MultiheadAttention attention{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
};
TORCH_MODULE(CutModules);

CutModules made(uint64_t seed) {
  CutModules model = oslo::test::make_seeded(seed, [] { return CutModules(); });
  model->to(torch::kDouble);
  return model;
}

ParallelModel parallelize(const CutModules& model, const World& world) {
  InitializeOptions how;
  how.world = world;
  Config config = Config::parse(
      R"json({"model_parallelism": {}, "plan": {"own": "shard(0)", "table": "column"}})json");
  config.set("model_parallelism.tensor_parallel_size=" + std::to_string(world.size()));
  const ParallelModel parallel = initialize(model, config, how);
  for (const Tensor& cut :
       {model->own, model->conv->weight, model->table->weight, model->attention->in_proj_weight}) {
    EXPECT_TRUE(is_placed(cut));
  }
  return parallel;
}

Tensor loss_of(CutModules& model) {
  return model->forward(numbers({4, 3, 6, 6}), torch::arange(12).view({4, 3}) % 11);
}

void expect_same_state(const torch::nn::Module& actual, const torch::nn::Module& expected) {
  const auto parameters = actual.named_parameters(), buffers = actual.named_buffers();
  for (const auto& item : expected.named_parameters()) {
    expect_close(parameters[item.key()], item.value(), item.key());
  }
  for (const auto& item : expected.named_buffers()) {
    expect_close(buffers[item.key()], item.value(), item.key());
  }
}

TEST(Serialization, OfACutTensorIsRefusedWhereverItIsPickled) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor p = marked(numbers({7, 5}), mpu);
    p.pow(2).sum().backward();
    std::stringstream out;
    const auto archived = [&](const std::function<void(torch::serialize::OutputArchive&)>& write) {
      torch::serialize::OutputArchive archive;
      write(archive);
      archive.save_to(out);
    };
    c10::Dict<std::string, Tensor> named;
    named.insert("p", p);
    const std::vector<std::pair<const char*, std::function<void()>>> ways = {
        {"save(tensor)", [&] { torch::save(p, out); }},
        {"save(tensors)",
         [&] {
           torch::save(Tensors{torch::ones(2), p}, out);
         }},
        {"save(gradient)", [&] { torch::save(p.grad(), out); }},
        {"save(copy)", [&] { torch::save(p.detach().clone(), out); }},
        {"save(data)", [&] { torch::save(p.data(), out); }},
        {"save(cast)", [&] { torch::save(p.to(torch::kFloat).cpu(), out); }},
        {"pickle_save", [&] { torch::pickle_save(p); }},
        {"pickle_save(list)", [&] { torch::pickle_save(Tensors{p}); }},
        {"pickle_save(dict)", [&] { torch::pickle_save(named); }},
        {"jit::pickle", [&] { torch::jit::pickle(p); }},
        {"Pickler",
         [&] {
           torch::jit::Pickler pickler([](const char*, size_t) {});
           pickler.protocol();
           pickler.pushIValue(p);
           pickler.stop();
         }},
        {"write(key, tensor)", [&] { archived([&](auto& archive) { archive.write("p", p); }); }},
        {"write(key, buffer)",
         [&] { archived([&](auto& archive) { archive.write("p", p, true); }); }},
        {"write(key, value)",
         [&] { archived([&](auto& archive) { archive.write("p", c10::IValue(p)); }); }},
    };
    for (const auto& [name, save] : ways) {
      EXPECT_THAT(test::error_of(save), AllOf(HasSubstr("save_parallelized"),
                                              HasSubstr("oslo::full_tensor"), HasSubstr("[7, 5]")))
          << name;
    }
    EXPECT_THAT(error_of([&] { torch::save(p * 2, out); }), HasSubstr("oslo::full_tensor(t)"));
    for (const Tensor& whole : {full_tensor(p), local_tensor(p).detach(), numbers({3})}) {
      std::stringstream file;
      torch::save(whole, file);
      Tensor back;
      torch::load(back, file);
      EXPECT_TRUE(torch::equal(back, whole));
    }
  });
}

TEST(Serialization, OfModulesAndOptimizersIsRefused) {
  run_as_threads(2, [](World world) {
    CutModules model = made(1);
    const ParallelModel parallel = parallelize(model, world);
    std::stringstream out;
    const auto refused = [&](const char* name, const auto& value) {
      EXPECT_THAT(test::error_of([&] { torch::save(value, out); }), HasSubstr("save_parallelized"))
          << name;
    };
    refused("the model", model);
    refused("a convolution", model->conv);
    refused("a table", model->table);
    refused("attention", model->attention);
    refused("parameters()", model->parameters());
    std::stringstream file;
    torch::save(model->norm->running_mean, file);  // what is whole is saved

    const auto refused_after_steps = [&](const char* name, torch::optim::Optimizer&& optimizer) {
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        loss_of(model).backward();
        optimizer.step();
      }
      EXPECT_THAT(test::error_of([&] { torch::save(optimizer, out); }),
                  HasSubstr("save_parallelized"))
          << name;
    };
    using namespace torch::optim;
    const Tensors parameters = model->parameters();
    refused_after_steps("SGD", SGD(parameters, SGDOptions(1e-3).momentum(0.9)));
    refused_after_steps("Adam", Adam(parameters, AdamOptions(1e-3)));
    refused_after_steps("AdamW", AdamW(parameters, AdamWOptions(1e-3).amsgrad(true)));
    refused_after_steps("RMSprop", RMSprop(parameters, RMSpropOptions(1e-3)));
    refused_after_steps("Adagrad", Adagrad(parameters, AdagradOptions(1e-3)));
  });
}

TEST(Serialization, ARefusedFileDoesNotLoad) {
  const test::TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    CutModules model = made(1), other = made(2);
    const ParallelModel parallel = parallelize(model, world);
    const std::string path = folder.path() / ("model" + std::to_string(world.rank()) + ".pt");
    EXPECT_THAT(test::error_of([&] { torch::save(model->conv, path); }),
                HasSubstr("save_parallelized"));
    EXPECT_ANY_THROW(torch::load(other->conv, path));
    expect_same_state(*other, *made(2));
  });
}

TEST(Serialization, LoadOfOneProcesssFileTakesThisRanksPart) {
  run_as_threads(3, [](World world) {
    CutModules model = made(1), other = made(2);
    std::stringstream file, part;
    torch::save(other, file);
    const ParallelModel parallel = parallelize(model, world);
    const Tensors handles = model->parameters();
    torch::load(model, file);
    for (size_t i = 0; i < handles.size(); ++i) {
      EXPECT_TRUE(model->parameters()[i].is_same(handles[i]));
      EXPECT_TRUE(handles[i].requires_grad() && handles[i].is_leaf());
    }
    parallel.check();
    expect_same_state(*model, *other);

    // Another shape, as of the part that this rank holds, or another dtype.
    for (const Tensor& wrong :
         {local_tensor(model->own).detach().clone(), numbers({3, 5}), torch::ones({5, 3})}) {
      std::stringstream wrong_file;
      torch::save(wrong, wrong_file);
      Tensor own = model->own;
      EXPECT_THAT(test::error_of([&] { torch::load(own, wrong_file); }),
                  AllOf(HasSubstr("own has shape [5, 3]"), HasSubstr("from_parallelized")));
    }
    expect_same_state(*model, *other);
  });
}

TEST(Serialization, TrainingGoesOnFromOneProcesssFiles) {
  run_as_threads(2, [](World world) {
    const torch::optim::AdamWOptions options(1e-2);
    CutModules one = made(1), many = made(3);
    torch::optim::AdamW one_steps(one->parameters(), options);
    const auto step = [](CutModules& model, torch::optim::Optimizer& optimizer) {
      optimizer.zero_grad();
      loss_of(model).backward();
      optimizer.step();
    };
    for (int i = 0; i < 2; ++i) step(one, one_steps);
    std::stringstream weights, states;
    torch::save(one, weights);
    torch::save(one_steps, states);

    const ParallelModel parallel = parallelize(many, world);
    torch::optim::AdamW many_steps(many->parameters(), options);
    torch::load(many, weights);
    torch::load(many_steps, states);
    for (int i = 0; i < 2; ++i) {
      step(one, one_steps);
      step(many, many_steps);
    }
    for (const auto& item : one->named_parameters()) {
      expect_close(many->named_parameters()[item.key()], item.value(), item.key(), 1e-9);
    }
  });
}

}  // namespace
}  // namespace oslo
