// Counted means under DistributedDataParallel, against the mean over all elements on one device.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "tests/counted_mean_test/net.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

using Ddp = DistributedDataParallel<torch::nn::Sequential>;

/// `body` on each rank of `data` x `tensor`.
void on_replicas(int data, int tensor,
                 const std::function<void(const World&, const ParallelModel&, Ddp&,
                                          torch::nn::Sequential&)>& body,
                 const DDPOptions& options = {}) {
  run_as_threads(data * tensor, [&](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential net = counted_net();
    const std::string config =
        c10::str(R"({"model_parallelism": {"tensor_parallel_size": )", tensor, "}}");
    const ParallelModel parallel = initialize(net, Config::parse(config), in(world));
    Ddp ddp(net, parallel.mpu().get_data_parallel_group(), options);
    body(world, parallel, ddp, net);
  });
}

/// Acceptance Z1: five tokens of loss w on one rank, one of 7 w on the other.
TEST(CountedMean, FiveTokensBesideOneGiveTwo) {
  run_as_threads(2, [](World world) {
    torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
    const MPU mpu(world);
    DistributedDataParallel<torch::nn::Linear> ddp(model, mpu.get_data_parallel_group());
    const Tensor x = world.rank() == 0 ? torch::ones({5, 1}) : torch::full({1, 1}, 7.0);
    ddp.forward(x).mean().backward();
    EXPECT_EQ(model->weight.grad().item<double>(), 4.0);
    model->zero_grad();
    const Tensor loss = counted_mean(ddp.forward(x).sum(), x.size(0), ddp);
    EXPECT_FLOAT_EQ(loss.item<float>(), 2 * model->weight.item<float>());
    loss.backward();
    EXPECT_FLOAT_EQ(model->weight.grad().item<float>(), 2.0);
    model->zero_grad();
    counted_mean(ddp.forward(x).sum(), torch::full({}, x.size(0)), ddp, x.size(0)).backward();
    EXPECT_FLOAT_EQ(model->weight.grad().item<float>(), 2.0);
  });
}

/// What a program may do with its gradients, drawn: how many micro-batches a step has, which
/// passes exchange, which ranks have rows, how gradients are emptied, or that they are not.
void expect_history(int data, int tensor, unsigned seed, const DDPOptions& options = {}) {
  SCOPED_TRACE(c10::str("data ", data, ", tensor ", tensor, ", seed ", seed));
  on_replicas(
      data, tensor,
      [&](const World&, const ParallelModel& parallel, Ddp& ddp, torch::nn::Sequential& net) {
        const MPU& mpu = parallel.mpu();
        std::mt19937 draw(seed);
        torch::nn::Sequential plain = counted_net();
        torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
        torch::optim::AdamW by_hand(plain->parameters(), torch::optim::AdamWOptions(1e-2));
        const bool in_steps = draw() % 2 == 0;  // else what zero_grad leaves out accumulates
        std::vector<Rows> since_empty;
        for (int step = 0; step < 5; ++step) {
          const int emptied = static_cast<int>(draw() % 3);
          const bool late = draw() % 2 == 0;  // between the forward and the backward pass
          const auto empty = [&] {
            if (!in_steps && emptied == 2) return;
            optimizer.zero_grad(emptied != 0);
            since_empty.clear();
          };
          if (!late) empty();
          const int passes = 1 + static_cast<int>(draw() % 3);
          for (int pass = 0; pass < passes; ++pass) {
            const bool exchanges = pass + 1 == passes || draw() % 3 == 0;
            std::vector<Rows> now;
            const bool nothing = draw() % 6 == 0;
            for (int rank = 0; rank < data; ++rank) {
              const int64_t count = nothing ? 0 : draw() % 4;
              now.push_back(rows_of(count, 10 * step + pass + 0.3 * rank));
            }
            std::optional<NoSyncGuard> waits;
            if (!exchanges) waits.emplace(ddp.core());
            const Rows& own = now[mpu.get_data_parallel_rank()];
            const Tensor loss = counted_mean(sum_of(&ddp, own), own.count(), ddp);
            if (late && pass == 0) empty();
            since_empty.insert(since_empty.end(), now.begin(), now.end());
            loss.backward();
            const double expected = mean_alone(plain, now);
            EXPECT_TRUE(std::isnan(expected) ? std::isnan(loss.item<double>())
                                             : std::abs(loss.item<double>() - expected) < 1e-9);
            if (!exchanges) continue;
            mean_alone(plain, since_empty);
            parity::expect_gradients(*net, *plain);
          }
          const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
          if (in_steps) {  // else what is there goes on being scaled
            EXPECT_NEAR(clip_grad_norm_(net->parameters(), 0.5), norm, 1e-9);
            optimizer.step();
            by_hand.step();
          }
        }
        parity::expect_weights(*net, *plain);
      },
      options);
}

TEST(CountedMean, IsTheMeanSinceGradientsWereEmptyInAnyHistory) {
  const char* const asked = std::getenv("OSLO_TEST_COUNTED_HISTORIES");
  const int histories = asked != nullptr ? std::atoi(asked) : 6;
  for (int i = 0; i < histories; ++i) {
    expect_history(1 + i % 3, 1, 100 + i);
    if (i % 4 == 0) expect_history(2, 2, 200 + i);
  }
}

TEST(CountedMean, IsTheMeanWhateverDdpIsTold) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    expect_history(2, 1, seed, DDPOptions().gradient_as_bucket_view(true));
    expect_history(2, 1, seed, DDPOptions().find_unused_parameters(true));
    expect_history(2, 1, seed, DDPOptions().bucket_cap_mb(0.0001));
    expect_history(2, 1, seed, DDPOptions().static_graph(true));
  }
}

/// One message a call, beside the exchange.
TEST(CountedMean, CostsOneSmallMessage) {
  on_replicas(2, 1, [](const World& world, const ParallelModel& parallel, Ddp& ddp, auto&) {
    const Rows rows = rows_of(2 + world.rank(), 1);
    const auto counted = [&] {
      Traffic traffic;
      for (const LedgerEntry& entry : parallel.mpu().data_group()->ledger().entries()) {
        if (entry.rule == "counted mean") traffic += entry.traffic;
      }
      return traffic;
    };
    counted_mean(sum_of(&ddp, rows), rows.count(), ddp).backward();
    EXPECT_EQ(counted().calls, 1);
    EXPECT_EQ(counted().bytes, 56);
    const torch::NoGradGuard evaluates;
    const Tensor shown = counted_mean(sum_of(&ddp, rows), rows.count(), ddp);
    EXPECT_FALSE(shown.requires_grad());
    EXPECT_EQ(counted().calls, 2);
  });
}

/// Two heads, of which each counts its own: side by side in one pass; over several by step counts.
TEST(CountedMean, SeveralMeansOfOneLossAndOtherTerms) {
  on_replicas(
      2, 1, [](const World& world, const ParallelModel&, Ddp& ddp, torch::nn::Sequential& net) {
        torch::nn::Sequential plain = counted_net();
        const int64_t counts[2][2][2] = {{{3, 1}, {0, 2}},
                                         {{1, 4}, {5, 1}}};  // head, rank, micro-batch
        const auto rows = [&](int head, int rank, int micro) {
          return rows_of(counts[head][rank][micro], 4 * head + 2 * rank + micro);
        };
        const auto term = [](torch::nn::Sequential& of) {
          return of->parameters()[0].pow(2).sum() * 0.1;
        };
        const auto expected = [&](int micros) {
          plain->zero_grad();
          Tensor loss = term(plain);
          for (int head = 0; head < 2; ++head) {
            Tensor sum = torch::zeros({}, torch::kDouble);
            double count = 0;
            for (int rank = 0; rank < 2; ++rank) {
              for (int micro = 0; micro < micros; ++micro) {
                sum = sum + sum_of(plain, rows(head, rank, micro)) * (head + 1);
                count += counts[head][rank][micro];
              }
            }
            loss = loss + sum / count;
          }
          loss.backward();
        };
        const int r = world.rank();
        const auto head = [&](int which, int micro, bool whole) {
          const Rows own = rows(which, r, micro);
          const Tensor sum = sum_of(&ddp, own) * (which + 1);
          if (!whole) return counted_mean(sum, own.count(), ddp);
          return counted_mean(sum, own.count(), ddp, counts[which][r][0] + counts[which][r][1]);
        };
        // DistributedDataParallel takes one forward a backward; the second head's is not its own.
        const auto loss_of = [&](int micro, bool whole) {
          const Tensor first = head(0, micro, whole);
          return first + head(1, micro, whole);
        };
        for (int step = 0; step < 2; ++step) {
          net->zero_grad();
          (loss_of(0, false) + term(net)).backward();
          expected(1);
          parity::expect_gradients(*net, *plain);
        }
        net->zero_grad();
        {
          const auto waits = ddp.no_sync();
          (loss_of(0, true) + 0.5 * term(net)).backward();
        }
        (loss_of(1, true) + 0.5 * term(net)).backward();
        expected(2);
        parity::expect_gradients(*net, *plain);
        // Without step counts nobody knows how to divide.
        net->zero_grad();
        (loss_of(0, false) + term(net)).backward();
        EXPECT_THAT(error_of([&] { loss_of(1, false).backward(); }),
                    AllOf(HasSubstr("of several counts"), HasSubstr("step_count")));
      });
}

TEST(CountedMean, GoesWithAScaler) {
  on_replicas(
      2, 1,
      [](const World& world, const ParallelModel& parallel, Ddp& ddp, torch::nn::Sequential& net) {
        torch::nn::Sequential plain = counted_net();
        torch::optim::SGD optimizer(net->parameters(), 0.1), by_hand(plain->parameters(), 0.1);
        GradScaler scaler(parallel, GradScalerOptions().init_scale(1024));
        for (int step = 0; step < 4; ++step) {
          const double factor = step == 1 && world.rank() == 1 ? INFINITY : 1;
          optimizer.zero_grad(step % 2 == 0);
          std::vector<Rows> all;
          for (int micro = 0; micro < 2; ++micro) {
            for (int rank = 0; rank < 2; ++rank)
              all.push_back(rows_of(1 + (rank + micro + step) % 3, rank + 2 * micro));
            const Rows& own = all[2 * micro + world.rank()];
            std::optional<NoSyncGuard> waits;
            if (micro == 0 && step > 1) waits.emplace(ddp.core());
            scaler.scale(counted_mean(sum_of(&ddp, own) * factor, own.count(), ddp)).backward();
          }
          scaler.unscale_(optimizer);
          mean_alone(plain, all);
          if (step != 1) parity::expect_gradients(*net, *plain);
          EXPECT_EQ(scaler.step(optimizer), step != 1);
          if (step != 1) by_hand.step();
          scaler.update();
          parity::expect_weights(*net, *plain);
        }
        EXPECT_EQ(scaler.get_scale(), 512);
      });
}

/// autograd::grad hands gradients out, and leaves what is there.
TEST(CountedMean, HandedOutIsTheShareOfTheMean) {
  on_replicas(2, 1, [](const World& world, const ParallelModel& parallel, Ddp& ddp, auto& net) {
    torch::nn::Sequential plain = counted_net();
    const std::vector<Rows> all{rows_of(3, 1), rows_of(1, 2)}, second{rows_of(2, 3), rows_of(4, 4)};
    const Rows &own = all[world.rank()], &other = second[world.rank()];
    counted_mean(sum_of(&ddp, own), own.count(), ddp).backward();
    mean_alone(plain, all);
    {
      const auto waits = ddp.no_sync();
      const Tensor loss = counted_mean(sum_of(&ddp, other), other.count(), ddp);
      const auto handed = torch::autograd::grad({loss}, net->parameters());
      parity::expect_gradients(*net, *plain);
      mean_alone(plain, second);
      for (size_t i = 0; i < handed.size(); ++i) {
        const Tensor mean = parallel.mpu().data_group()->all_reduce(handed[i].clone()) / 2;
        parity::expect_close(mean, plain->parameters()[i].grad(), "handed out");
      }
    }
    counted_mean(sum_of(&ddp, other), other.count(), ddp).backward();
    mean_alone(plain, {all[0], all[1], second[0], second[1]});
    parity::expect_gradients(*net, *plain);
  });
}

/// Nothing to learn from: NaN is shown, as by LibTorch's mean of nothing, and gradients are zero.
TEST(CountedMean, OfNothingLearnsNothing) {
  on_replicas(2, 1, [](const World&, const ParallelModel&, Ddp& ddp, torch::nn::Sequential& net) {
    const Tensor loss = counted_mean(sum_of(&ddp, rows_of(0, 1)), 0, ddp);
    EXPECT_TRUE(std::isnan(loss.item<double>()));
    loss.backward();
    for (const Tensor& parameter : net->parameters()) {
      EXPECT_TRUE(torch::equal(parameter.grad(), torch::zeros_like(parameter)));
    }
    EXPECT_THAT(error_of([&] { counted_mean(sum_of(&ddp, rows_of(2, 1)), 0, ddp); }),
                HasSubstr("count no elements"));
  });
}

TEST(CountedMean, RefusalsAreThrownOnEveryRank) {
  on_replicas(2, 1, [](const World& world, const ParallelModel&, Ddp& ddp, torch::nn::Sequential&) {
    const bool second = world.rank() == 1;
    const auto sum = [&] { return sum_of(&ddp, rows_of(2, 1)); };
    const auto error = [&](const Tensor& loss, const Count& count) {
      return error_of([&] { counted_mean(loss, count, ddp); });
    };
    EXPECT_THAT(error(sum(), second ? -1 : 1),
                HasSubstr("data rank 1 of group data gave the count -1"));
    EXPECT_THAT(error(sum(), second ? NAN : 1), HasSubstr("gave the count nan"));
    EXPECT_THAT(error(second ? torch::ones({2}) : sum(), 1), HasSubstr("not one number"));
    EXPECT_THAT(error(second ? sum().detach() : sum(), 1), HasSubstr("without history"));
    EXPECT_THAT(error_of([&] { counted_mean(sum(), 3, ddp, second ? 2 : 4); }),
                HasSubstr("counts 3 in this call and 2 in the whole step"));
  });
  on_replicas(2, 1, [](const World&, const ParallelModel&, Ddp& ddp, torch::nn::Sequential& net) {
    torch::nn::Sequential other = counted_net();
    const auto waits = ddp.no_sync();
    const Rows rows = rows_of(2, 1);
    const Tensor both = sum_of(&ddp, rows) + sum_of(other, rows);
    EXPECT_THAT(error_of([&] { counted_mean(both, 2, ddp).backward(); }),
                AllOf(HasSubstr("a tensor of shape ["), HasSubstr("step_count")));
    sum_of(&ddp, rows).backward();  // not counted
    EXPECT_THAT(error_of([&] { counted_mean(sum_of(&ddp, rows), 2, ddp).backward(); }),
                HasSubstr("gradients of other losses"));
    net->zero_grad();
    counted_mean(sum_of(&ddp, rows), 2, ddp, 4).backward();
    EXPECT_THAT(error_of([&] { counted_mean(sum_of(&ddp, rows), 2, ddp).backward(); }),
                HasSubstr("step_count"));
  });
  on_replicas(2, 1, [](const World& world, const ParallelModel&, Ddp& ddp, torch::nn::Sequential&) {
    const Rows rows = rows_of(2, 1);
    const auto waits = ddp.no_sync();
    const Tensor loss = counted_mean(sum_of(&ddp, rows), 2, ddp);
    if (world.rank() == 0) loss.backward();  // the other goes on without
    EXPECT_THAT(error_of([&] { counted_mean(sum_of(&ddp, rows), 2, ddp); }),
                HasSubstr("accumulated differently"));
  });
}

}  // namespace
}  // namespace oslo::test
