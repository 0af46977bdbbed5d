#include "tests/model_lifetime_test/scene.h"
#include "tests/support/temporary_directory.h"

namespace oslo::lifetime_test {

void add_other_uses(Uses& uses) {
  add(uses, "gradients accumulated, kernels fused",
      [](const Scene& scene) {
        Net model = scene.net();
        const auto parallel = scene.parallel(model);
        for (int i = 0; i < 3; ++i) step(model);
        torch::gelu(model->up->forward(model->words->forward(ids())), "tanh");
        model->up->forward(model->words->forward(ids()));  // no GeLU comes
      },
      {1, 2, 1}, {"kernel_fusion=true"});
  add(uses, "a cache in a member", [](const Scene& scene) {
    Net model = scene.net();
    const Tensor cache = model->register_buffer("cache", torch::zeros({kRows, 9}));
    const auto parallel = scene.parallel(model);
    model->scale = model->up->forward(model->words->forward(ids()));
    cache.slice(0, 0, 3).copy_(model->scale.slice(0, 0, 3));
    cache.sum().backward();
  });
  add(uses, "other layers",
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
  add(uses, "random numbers of a rank's own", [](const Scene& scene) {
    Net model = scene.net();
    InitializeOptions how = scene.how([&] { model->forward(ids()); });
    how.random_mode = RandomMode::per_rank;
    const ParallelModel parallel = initialize(model, scene.config(), how);
    scene.watch.add(parallel.mpu());
    step(model);
  });
  add(uses, "constructed as shapes", [](const Scene& scene) {
    auto model = make_seeded(3, [] {
      const DeferredInit guard;
      return Net();
    });
    const auto parallel = scene.parallel(model);
    step(model);
  });
  add(uses, "verified", [](const Scene& scene) {
    Net model = scene.net(), reference = scene.net();
    const auto parallel = scene.parallel(model);
    model->eval();
    reference->eval();
    verify(parallel, reference, ids());
  });
  add(uses, "several handles of one model", [](const Scene& scene) {
    Net model = scene.net();
    auto parallel = scene.parallel(model);
    ParallelModel other = parallel;
    step(model);
    other.count([&] { step(model); });
  });
  add(uses, "made ordinary", [](const Scene& scene) {
    Net model = scene.net();
    auto parallel = scene.parallel(model);
    step(model);
    parallel.deparallelize();
    step(model);
  });
  add(uses, "another layout", [](const Scene& scene) {
    Net model = scene.net();
    auto parallel = scene.parallel(model);
    step(model);
    parallel.reshard(Config::parse(R"({"model_parallelism": {"enable": true}})"));
    scene.watch.add(parallel.mpu());
    step(model);
  });
  add(uses, "saved and loaded", [](const Scene& scene) {
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
  add(uses, "layers by hand", [](const Scene& scene) {
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
  add(uses, "tensors by hand", [](const Scene& scene) {
    const MPU mpu(scene.world, MpuOptions().tensor_parallel_size(scene.grid.tensor));
    scene.watch.add(mpu);
    const Tensor leaf = torch::ones({5, 7}, torch::requires_grad());
    const Tensor x = distribute(leaf, mpu.tensor_mesh(), {Placement::shard(1)});
    const Tensor own = (x * 2).detach().requires_grad_(true);
    (own * x).sum().backward();
    EXPECT_TRUE(own.grad().defined());
    full_tensor(x).sum().backward();
  });
  add(uses, "data parallel",
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
  add(uses, "data parallel, reset",
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
  add(uses, "data parallel alone",
      [](const Scene& scene) {
        Net model = scene.net();
        auto parallel = scene.parallel(model);
        DistributedDataParallel<Net> ddp(model, parallel.mpu().get_data_parallel_group());
        loss_of(ddp.forward(ids()), ids()).backward();
      },
      {2, 1, 1});
}

}  // namespace oslo::lifetime_test
