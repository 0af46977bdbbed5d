// DistributedDataParallel on a module whose parameters are cut over tensor ranks: dp 2 x tp 2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mpu/grid/mpu.h"
#include "parallelizers/data/distributed_data_parallel.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "tests/data_parallel_test/net.h"
#include "tests/support/seeded.h"

namespace tensor_axis_test {
namespace {

using data_parallel_test::random;
using oslo::DDPOptions;
using oslo::DistributedDataParallel;
using oslo::MPU;
using oslo::Placement;
using testing::HasSubstr;
using torch::Tensor;

struct MlpImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, bool skip = false) {
    const Tensor h = norm->forward(x);
    return skip ? h : h + down->forward(torch::gelu(up->forward(h)));
  }
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{6}))};
  torch::nn::Linear up{register_module("up", torch::nn::Linear(6, 9))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(9, 6))};
};
TORCH_MODULE(Mlp);

Mlp seeded_mlp() {
  return oslo::test::make_seeded(0, [] {
    Mlp mlp;
    mlp->to(torch::kDouble);
    return mlp;
  });
}

/// Column then row, 9 over 2 unevenly.
void cut(Mlp& mlp, const MPU& mpu) {
  const auto mark = [&](const Tensor& parameter, int64_t dim, const std::string& name) {
    oslo::mark_parameter(parameter,
                         std::make_shared<oslo::Layout>(oslo::make_layout(
                             mpu.tensor_mesh(), {Placement::shard(dim)}, parameter.sizes())),
                         name);
  };
  mark(mlp->up->weight, 0, "up.weight");
  mark(mlp->up->bias, 0, "up.bias");
  mark(mlp->down->weight, 1, "down.weight");
}

/// Gradients of both, and that those of cut parameters say so.
void expect_same(const Mlp& one, const Mlp& cut, const std::string& when) {
  const auto parameters = cut->named_parameters();
  for (const auto& p : one->named_parameters()) {
    const Tensor& gradient = parameters[p.key()].grad();
    ASSERT_TRUE(gradient.defined()) << p.key() << when;
    EXPECT_EQ(oslo::is_placed(gradient), oslo::is_placed(parameters[p.key()])) << p.key() << when;
    const Tensor whole = oslo::full_tensor(gradient), expected = p.value().grad();
    ASSERT_EQ(whole.sizes(), expected.sizes()) << p.key() << when;
    EXPECT_TRUE(torch::allclose(whole, expected, 1e-9, 1e-10)) << p.key() << when;
  }
}

struct Variant {
  const char* name;
  DDPOptions options;
  bool set_to_none = true;
};

class DataAndTensor : public testing::TestWithParam<Variant> {};

TEST_P(DataAndTensor, TrainsAsOneDevice) {
  const Tensor x = random({8, 6}, 1), y = random({8, 6}, 2);
  oslo::run_as_threads(4, [&](oslo::World world) {
    const MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
    Mlp one = seeded_mlp(), mlp = seeded_mlp();
    cut(mlp, mpu);
    DistributedDataParallel<Mlp> ddp(mlp, mpu.data_group(), GetParam().options);
    torch::optim::AdamW one_optimizer(one->parameters(), 0.01), optimizer(mlp->parameters(), 0.01);
    const int r = mpu.get_data_parallel_rank();
    const auto xs = x.chunk(2)[r].chunk(2), ys = y.chunk(2)[r].chunk(2);
    for (int step = 0; step < 4; ++step) {
      const std::string when = c10::str(" in step ", step);
      one_optimizer.zero_grad();
      torch::mse_loss(one->forward(x), y).backward();
      optimizer.zero_grad(GetParam().set_to_none);
      {
        const auto quiet = ddp.no_sync();
        (torch::mse_loss(ddp.forward(xs[0]), ys[0]) / 2).backward();
      }
      (torch::mse_loss(ddp.forward(xs[1]), ys[1]) / 2).backward();
      expect_same(one, mlp, when);
      one_optimizer.step();
      optimizer.step();
    }
    for (const auto& p : one->named_parameters()) {
      const Tensor whole = oslo::full_tensor(mlp->named_parameters()[p.key()]);
      EXPECT_TRUE(torch::allclose(whole, p.value(), 1e-9, 1e-10)) << p.key();
    }
    EXPECT_EQ(context_of(mpu.tensor_mesh())->gathers().entries().size(), 0u);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Options, DataAndTensor,
    testing::Values(Variant{"Defaults", {}}, Variant{"KeptGradients", {}, false},
                    Variant{"SmallBuckets", DDPOptions().bucket_cap_mb(1e-4)},
                    Variant{"Views", DDPOptions().gradient_as_bucket_view(true)},
                    Variant{"KeptViews", DDPOptions().gradient_as_bucket_view(true), false},
                    Variant{"FindUnused", DDPOptions().find_unused_parameters(true)},
                    Variant{"Static", DDPOptions().static_graph(true)}),
    [](const auto& info) { return info.param.name; });

TEST(DataAndTensorCounts, OneBucketOfThisRanksParts) {
  oslo::run_as_threads(4, [&](oslo::World world) {
    const MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
    Mlp mlp = seeded_mlp();
    cut(mlp, mpu);
    DistributedDataParallel<Mlp> ddp(mlp, mpu.data_group());
    ddp.ledger().clear();
    const int64_t width = mpu.get_tensor_parallel_rank() == 0 ? 5 : 4;
    const int64_t elements = 2 * 6 + width * 6 + width + 6 * width + 6;
    EXPECT_EQ(ddp.bucket_sizes(), std::vector<int64_t>{elements * 8});
    ddp.forward(random({2, 6}, world.rank())).sum().backward();
    const oslo::Traffic expected{1, elements, elements * 8};  // 2 (n - 1) / n of it, n = 2
    EXPECT_EQ(ddp.ledger().total(), expected);
  });
}

// One feature over two ranks: what one of them holds could be taken for the whole.
TEST(DataAndTensorUneven, GradientsOfOneRankAddUp) {
  const Tensor x = random({4, 6}, 1);
  oslo::run_as_threads(4, [&](oslo::World world) {
    const MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
    const auto make = [] {
      return oslo::test::make_seeded(0, [] {
        torch::nn::Linear linear(6, 1);
        linear->to(torch::kDouble);
        return linear;
      });
    };
    torch::nn::Linear one = make(), cut_one = make();
    for (const char* name : {"weight", "bias"}) {
      const Tensor parameter = cut_one->named_parameters()[name];
      oslo::mark_parameter(parameter,
                           std::make_shared<oslo::Layout>(oslo::make_layout(
                               mpu.tensor_mesh(), {Placement::shard(0)}, parameter.sizes())),
                           name);
    }
    DistributedDataParallel<torch::nn::Linear> ddp(cut_one, mpu.data_group());
    const Tensor part = x.chunk(2)[mpu.get_data_parallel_rank()];
    for (int step = 0; step < 3; ++step) {  // gradients are kept
      one->forward(x * (step + 1)).pow(2).mean().backward();
      const Tensor y = ddp.forward(part * (step + 1));
      const Tensor held = cut_one->weight.grad();
      y.pow(2).mean().backward();
      for (const char* name : {"weight", "bias"}) {
        const Tensor gradient = cut_one->named_parameters()[name].grad();
        EXPECT_TRUE(oslo::is_placed(gradient)) << name;
        EXPECT_TRUE(torch::allclose(oslo::full_tensor(gradient),
                                    one->named_parameters()[name].grad(), 1e-9, 1e-10))
            << name << " in step " << step;
      }
      EXPECT_TRUE(step == 0 || held.is_same(cut_one->weight.grad()));
    }
  });
}

TEST(DataAndTensorUnused, GradientsFromOtherRanksAreMarkedToo) {
  for (const bool views : {false, true}) {
    oslo::run_as_threads(4, [&](oslo::World world) {
      const MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
      Mlp one = seeded_mlp(), mlp = seeded_mlp();
      cut(mlp, mpu);
      DistributedDataParallel<Mlp> ddp(
          mlp, mpu.data_group(),
          DDPOptions().find_unused_parameters(true).gradient_as_bucket_view(views));
      const Tensor x = random({2, 6}, 3), weight = random({2, 6}, 4);
      for (int step = 0; step < 2; ++step) {
        one->zero_grad();
        mlp->zero_grad();
        // Data rank 1 skips the layers that are cut.
        (((one->forward(x) + one->forward(x, true)) * weight).sum() / 2).backward();
        (ddp.forward(x, mpu.get_data_parallel_rank() == 1) * weight).sum().backward();
        expect_same(one, mlp, views ? " with views" : "");
      }
    });
  }
}

TEST(DataAndTensorErrors, MarksThatComeOrGoAreNoticed) {
  oslo::run_as_threads(4, [&](oslo::World world) {
    const MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
    const auto error_of = [](DistributedDataParallel<Mlp>& ddp) -> std::string {
      try {
        ddp.forward(random({2, 6}, 3));
      } catch (const oslo::Error& error) {
        return error.what();
      }
      return "";
    };
    Mlp early = seeded_mlp();
    DistributedDataParallel<Mlp> before(early, mpu.data_group());
    cut(early, mpu);
    EXPECT_THAT(error_of(before), HasSubstr("parameter up.weight was cut over ranks after"));

    Mlp late = seeded_mlp();
    cut(late, mpu);
    DistributedDataParallel<Mlp> after(late, mpu.data_group());
    const Tensor plain = oslo::local_tensor(late->up->weight).detach().clone();
    late->up->weight.unsafeGetTensorImpl()->shallow_copy_from(plain.getIntrusivePtr());
    EXPECT_THAT(error_of(after), HasSubstr("parameter up.weight has lost the mark"));
  });
}

}  // namespace
}  // namespace tensor_axis_test
