// Random histories of half models with DistributedDataParallel: passes that are exchanged or not,
// parameters that are unused, gradients that are let go or set to zero, at any time.
#include <memory>
#include <random>

#include "tests/mixed_precision_test/cases.h"

namespace oslo::test {
namespace {

struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (int i = 0; i < 4; ++i) {
      branches.push_back(register_module("b" + std::to_string(i), torch::nn::Linear(3, 5)));
    }
    to(torch::kBFloat16);
    branches[1]->to(torch::kFloat);
  }
  torch::Tensor forward(const torch::Tensor& x, int used) {
    torch::Tensor sum;
    for (int i = 0; i < 4; ++i) {
      if ((used >> i) % 2 == 0) continue;
      const torch::Tensor own =
          branches[i](x.to(branches[i]->weight.scalar_type())).to(torch::kFloat).square().sum();
      sum = sum.defined() ? sum + own : own;
    }
    return sum;
  }
  std::vector<torch::nn::Linear> branches;
};
TORCH_MODULE(Branches);

TEST(HalfHistories, ExchangesOfAnyKindGiveTheSumsInFp32) {
  for (int seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      std::mt19937 chance(seed);
      const auto make = [] { return Branches(); };
      Branches model = make_seeded(5, make), plain = make_seeded(5, make);
      const auto parallel = initialize(model, Config::parse("{}"), in(world));
      DDPOptions options;
      options.find_unused_parameters(true).gradient_as_bucket_view(seed % 2 == 1);
      if (seed % 3 == 0) options.bucket_cap_mb(1e-4);
      DistributedDataParallel<Branches> ddp(model, parallel.mpu().get_data_parallel_group(),
                                            options);
      // What each rank has: the sums of a rank, until an exchange makes them the average.
      std::vector<std::vector<torch::Tensor>> sums(2, std::vector<torch::Tensor>(8));
      const auto input = [&](int number) {
        return make_seeded(1000 * seed + number, [] { return torch::randn({2, 3}); });
      };
      bool settled = true;
      int since = 0;  // LibTorch's reducer remembers what passes without an exchange used
      for (int number = 0; number < 12; ++number) {
        const bool exchanged = chance() % 2 == 0;
        const int used[2] = {static_cast<int>(1 + chance() % 15),
                             static_cast<int>(1 + chance() % 15)};
        const auto forward = [&] {
          const torch::Tensor x = input(2 * number + world.rank());
          if (exchanged) return ddp.forward(x, used[world.rank()]);
          const auto guard = ddp.no_sync();
          return ddp.forward(x, used[world.rank()]);
        };
        const torch::Tensor loss = forward();
        const int before = static_cast<int>(chance() % 4);  // between forward and backward
        if (settled && before < 2) {
          model->zero_grad(before == 0);
          for (auto& of_rank : sums) {
            for (torch::Tensor& each : of_rank) {
              if (before == 0) each = torch::Tensor();
              if (before == 1 && each.defined()) each = torch::zeros_like(each);
            }
          }
        }
        settled = exchanged;
        since |= used[0] | used[1];
        loss.backward();
        for (int rank = 0; rank < 2; ++rank) {
          plain->zero_grad();
          plain->forward(input(2 * number + rank), used[rank]).backward();
          const auto parameters = plain->parameters();
          for (size_t i = 0; i < parameters.size(); ++i) {
            if (!parameters[i].grad().defined()) continue;
            const torch::Tensor wide = parameters[i].grad().to(torch::kFloat);
            sums[rank][i] = sums[rank][i].defined() ? sums[rank][i] + wide : wide;
          }
        }
        for (size_t i = 0; exchanged && i < 8; ++i) {
          // What no rank used since the last exchange stays as it is on each.
          if ((since >> (i / 2)) % 2 == 0) continue;
          torch::Tensor all;
          for (const auto& of_rank : sums) {
            if (!of_rank[i].defined()) continue;
            all = all.defined() ? all + of_rank[i] : of_rank[i];
          }
          for (auto& of_rank : sums) of_rank[i] = all / 2;
        }
        if (exchanged) since = 0;
        const auto parameters = model->parameters();
        for (size_t i = 0; i < parameters.size(); ++i) {
          const torch::Tensor &own = parameters[i].grad(), &sum = sums[world.rank()][i];
          ASSERT_EQ(own.defined(), sum.defined()) << number << " " << i;
          if (!own.defined()) continue;
          EXPECT_EQ(own.scalar_type(), torch::kFloat);
          EXPECT_TRUE(torch::allclose(own, sum, 1e-4, 1e-5)) << number << " " << i << own << sum;
        }
        if (testing::Test::HasFailure()) return;
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test
