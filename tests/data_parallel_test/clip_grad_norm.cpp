#include "parallelizers/data/clip_grad_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mpu/grid/mpu.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/mark.h"

namespace {

using oslo::MeshPtr;
using oslo::MPU;
using oslo::Placement;
using oslo::World;
using testing::HasSubstr;
using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor random(torch::IntArrayRef sizes, uint64_t seed) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}

/// A parameter of zeros whose gradient is `gradient`.
Tensor whole(const Tensor& gradient) {
  Tensor parameter = torch::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

/// The same, cut.
Tensor cut(const Tensor& gradient, const MeshPtr& mesh, const std::vector<Placement>& placements) {
  Tensor parameter = torch::zeros_like(gradient).requires_grad_();
  auto layout =
      std::make_shared<oslo::Layout>(oslo::make_layout(mesh, placements, gradient.sizes()));
  oslo::mark_parameter(parameter, layout, "p");
  parameter.mutable_grad() = oslo::local_part(gradient, *layout).clone();
  oslo::mark_gradient(parameter.grad(), parameter);
  return parameter;
}

struct Case {
  std::vector<Tensor> one, placed;
};

/// T17: whole, cut by rows (5 over 2, unevenly), by columns.
Case over_one_axis(const MeshPtr& mesh) {
  const Tensor a = random({4, 6}, 1), b = random({5, 3}, 2), c = random({2, 7}, 3);
  return {{whole(a), whole(b), whole(c)},
          {whole(a), cut(b, mesh, {Placement::shard(0)}), cut(c, mesh, {Placement::shard(1)})}};
}

void expect_same_gradients(const Case& example) {
  for (size_t i = 0; i < example.one.size(); ++i) {
    const Tensor all = oslo::full_tensor(example.placed[i].grad());
    EXPECT_TRUE(torch::allclose(all, example.one[i].grad(), 1e-5, 1e-7)) << i << all;
  }
}

class ClipGradNorm : public testing::TestWithParam<double> {};

TEST_P(ClipGradNorm, IsThatOfOneDevice) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
    const double p = GetParam();
    oslo::Ledger& ledger = mpu.tensor_group()->ledger();
    for (const double max_norm : {0.5, 1000.0}) {
      Case example = over_one_axis(mpu.tensor_mesh());
      const double expected = torch::nn::utils::clip_grad_norm_(example.one, max_norm, p);
      ledger.clear();
      EXPECT_NEAR(oslo::clip_grad_norm_(example.placed, max_norm, p), expected, 1e-5 * expected);
      EXPECT_EQ(ledger.total().calls, 1);
      expect_same_gradients(example);
    }
  });
}

TEST_P(ClipGradNorm, TorchsOwnGivesTheSame) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
    Case example = over_one_axis(mpu.tensor_mesh());
    const double expected = torch::nn::utils::clip_grad_norm_(example.one, 0.5, GetParam());
    EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(example.placed, 0.5, GetParam()), expected,
                1e-5 * expected);
    expect_same_gradients(example);
  });
}

TEST_P(ClipGradNorm, OverTwoAxesTakesOneMessageEach) {
  oslo::run_as_threads(4, [](World world) {
    const int row = world.rank() / 2, column = world.rank() % 2;
    const auto rows = world.make_group("row", {2 * row, 2 * row + 1});
    const auto columns = world.make_group("column", {column, column + 2});
    const MeshPtr mesh =
        std::make_shared<oslo::Mesh>(std::vector<std::shared_ptr<oslo::Group>>{columns, rows});
    const Placement all = Placement::replicate(), first = Placement::shard(0),
                    second = Placement::shard(1);
    Case example;
    int seed = 0;
    for (const auto& placements : std::vector<std::vector<Placement>>{
             {all, all}, {first, all}, {all, second}, {first, second}, {first, first}}) {
      const Tensor gradient = random({5, 4}, ++seed);
      example.one.push_back(whole(gradient));
      example.placed.push_back(cut(gradient, mesh, placements));
    }
    const double expected = torch::nn::utils::clip_grad_norm_(example.one, 0.5, GetParam());
    EXPECT_NEAR(oslo::clip_grad_norm_(example.placed, 0.5, GetParam()), expected, 1e-5 * expected);
    EXPECT_EQ(rows->ledger().total().calls, 1);
    EXPECT_EQ(columns->ledger().total().calls, 1);
    expect_same_gradients(example);
  });
}

INSTANTIATE_TEST_SUITE_P(Orders, ClipGradNorm, testing::Values(1.0, 2.0, 3.0, kInfinity),
                         [](const auto& info) {
                           return std::isinf(info.param)
                                      ? std::string("inf")
                                      : std::to_string(static_cast<int>(info.param));
                         });

/// `p.mutable_grad() = p.grad() / 4` is a value of the global shape; so may be the gradient of a
/// parameter that is whole.
TEST(ClipGradNorm, TakesGradientsThatWereAssigned) {
  for (const int ranks : {2, 3}) {
    oslo::run_as_threads(ranks, [&](World world) {
      const MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(ranks));
      for (const double p : {2.0, kInfinity}) {
        Case example = over_one_axis(mpu.tensor_mesh());
        for (auto* parameters : {&example.one, &example.placed}) {
          for (Tensor& parameter : *parameters) {
            parameter.mutable_grad() = parameter.grad() / 4;
          }
        }
        example.placed[0].mutable_grad() =
            oslo::distribute(example.placed[0].grad(), mpu.tensor_mesh(), {Placement::shard(1)});
        const double expected = torch::nn::utils::clip_grad_norm_(example.one, 0.1, p);
        EXPECT_NEAR(oslo::clip_grad_norm_(example.placed, 0.1, p), expected, 1e-5 * expected);
        expect_same_gradients(example);
        // What a log computes of them is global.
        EXPECT_NEAR(example.placed[1].grad().norm().item<double>(),
                    example.one[1].grad().norm().item<double>(), 1e-6);
      }
    });
  }
}

TEST(ClipGradNormPlain, NeedsNoRanks) {
  const Tensor gradient = random({3, 4}, 1);
  std::vector<Tensor> ours{whole(gradient), torch::zeros({2}).requires_grad_(), Tensor()};
  std::vector<Tensor> torchs{whole(gradient)};
  EXPECT_NEAR(oslo::clip_grad_norm_(ours, 0.1), torch::nn::utils::clip_grad_norm_(torchs, 0.1),
              1e-6);
  EXPECT_TRUE(torch::allclose(ours[0].grad(), torchs[0].grad()));
  EXPECT_EQ(oslo::clip_grad_norm_({ours[1]}, 1.0), 0.0);
  EXPECT_EQ(oslo::clip_grad_norm_({}, 1.0), 0.0);
}

TEST(ClipGradNormPlain, ATensorThatIsListedTwiceCountsAsInLibTorch) {
  for (const double p : {2.0, 1.0, kInfinity}) {
    const Tensor ours = whole(torch::full({4}, 3.0)), torchs = whole(torch::full({4}, 3.0));
    EXPECT_NEAR(oslo::clip_grad_norm_({ours, ours}, 3.0, p),
                torch::nn::utils::clip_grad_norm_(std::vector<Tensor>{torchs, torchs}, 3.0, p),
                1e-5);
    EXPECT_TRUE(torch::allclose(ours.grad(), torchs.grad()));
  }
}

TEST(ClipGradNormPlain, HalfPrecisionDoesNotOverflow) {
  const Tensor parameter = whole(torch::full({100}, 30000.0, torch::kHalf));
  EXPECT_NEAR(oslo::clip_grad_norm_({parameter}, 10.0), 300000.0, 100.0);
  EXPECT_TRUE(torch::allclose(parameter.grad(), torch::full({100}, 1.0, torch::kHalf), 1e-2));
}

TEST(ClipGradNormPlain, SparseGradientsAddUpFirst) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  table->forward(torch::tensor({1, 1, 3})).sum().backward();  // rows 1 and 3: (2, 2) and (1, 1)
  EXPECT_NEAR(oslo::clip_grad_norm_({table->weight}, 1.0), std::sqrt(10.0), 1e-6);
  EXPECT_NEAR(table->weight.grad().to_dense()[1][0].item<double>(), 2 / std::sqrt(10.0), 1e-5);
}

TEST(ClipGradNormBad, ANormThatIsNotFiniteIsSeenByAllRanks) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
    for (const double p : {2.0, kInfinity}) {
      for (const int row : {0, 3}) {  // on the first rank, on the second
        Tensor gradient = torch::ones({4});
        gradient[row] = std::nan("");
        const Tensor parameter = cut(gradient, mpu.tensor_mesh(), {Placement::shard(0)});
        try {
          oslo::clip_grad_norm_({parameter}, 1.0, p, /*error_if_nonfinite=*/true);
          ADD_FAILURE() << "no error";
        } catch (const oslo::Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("is nan, so they cannot be clipped"));
        }
        EXPECT_EQ(oslo::full_tensor(parameter.grad()).nansum().item<double>(), 3.0)
            << "gradients changed before the error";
        EXPECT_TRUE(std::isnan(oslo::clip_grad_norm_({parameter}, 1.0, p)));
      }
    }
  });
}

TEST(ClipGradNormBad, EmptyPartsCountNothing) {
  oslo::run_as_threads(3, [](World world) {
    const MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(3));
    for (const double p : {2.0, kInfinity}) {
      const Tensor parameter = cut(torch::full({2}, 3.0), mpu.tensor_mesh(), {Placement::shard(0)});
      EXPECT_NEAR(oslo::clip_grad_norm_({parameter}, 1.0, p), p == 2.0 ? std::sqrt(18.0) : 3.0,
                  1e-6);
    }
  });
}

TEST(ClipGradNormBad, OrdersAndLimitsAreChecked) {
  EXPECT_THROW(oslo::clip_grad_norm_({}, 1.0, 0.0), oslo::Error);
  EXPECT_THROW(oslo::clip_grad_norm_({}, -1.0), oslo::Error);
}

}  // namespace
