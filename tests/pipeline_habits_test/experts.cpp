// Mixtures of experts whose experts are left out where they have no word: the run on shapes, where
// no mask is set, takes none of the branches that real batches take. Under every kind of schedule
// they train as on one device, or all ranks refuse them by name.
#include <gmock/gmock.h>

#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "tests/pipeline_habits_test/habit_net.h"

namespace oslo::test {
namespace {

using parity::make_seeded;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

/// Which rows an expert has: by the value that the model computed, and few micro-batches at all.
Tensor rows_of(const Tensor& gate, const Tensor& words, int expert) {
  return (gate.slice(1, 0, 3).argmax(1) == expert).logical_and(words.select(1, 0) < 5);
}

/// `h`, to which each expert adds what it makes of its rows; `layers` are the experts'.
Tensor mixture(HabitNetImpl& net, const Tensor& h, const Tensor& gate, const Tensor& words,
               const std::vector<int>& layers) {
  Tensor out = h;
  for (size_t e = 0; e < layers.size(); ++e) {
    const Tensor mine = rows_of(gate, words, static_cast<int>(e));
    if (!mine.any().item<bool>()) continue;
    const Tensor rows = mine.nonzero().squeeze(1);
    out = out.index_add(0, rows, torch::tanh(net.layer(layers[e], h.index_select(0, rows))));
  }
  return out;
}

struct Mixture {
  const char* name;
  Habit habit;
};

const std::vector<Mixture>& mixtures() {
  static const std::vector<Mixture> all{
      {"experts on the stages in order",
       [](HabitNetImpl& net, const Tensors& micro) {
         const Tensor h = net.layer(0, micro[0]);
         return error_of_rows(mixture(net, h, h, micro[2], {1, 2, 3}), micro[1]);
       }},
      {"experts on the stages in reverse",
       [](HabitNetImpl& net, const Tensors& micro) {
         const Tensor h = net.layer(0, micro[0]);
         return error_of_rows(mixture(net, h, h, micro[2], {3, 2, 1}), micro[1]);
       }},
      {"a gate behind its experts",
       [](HabitNetImpl& net, const Tensors& micro) {
         const Tensor h = net.layer(0, micro[0]), gate = net.layer(3, torch::tanh(h));
         return error_of_rows(mixture(net, h, gate, micro[2], {1, 2, 1}), micro[1]);
       }},
      {"a gate in front, experts behind the last layer",
       [](HabitNetImpl& net, const Tensors& micro) {
         const Tensor gate = net.layer(0, micro[0]);
         const Tensor h = net.layer(3, net.layer(2, net.layer(1, gate)));
         return error_of_rows(mixture(net, h, gate, micro[2], {1, 0, 2}), micro[1]);
       }},
      {"a mixture between each two layers",
       [](HabitNetImpl& net, const Tensors& micro) {
         Tensor h = net.layer(0, micro[0]);
         for (int i = 1; i < kLayers; ++i) {
           h = mixture(net, h, h, micro[2], {i - 1, i});
           h = torch::tanh(net.layer(i, h));
         }
         return error_of_rows(h, micro[1]);
       }},
      {"a branch inside a branch",
       [](HabitNetImpl& net, const Tensors& micro) {
         Tensor h = net.layer(1, net.layer(0, micro[0]));
         const Tensor mine = rows_of(h, micro[2], 0);
         if (mine.any().item<bool>()) {
           Tensor more = net.layer(2, h) * mine.unsqueeze(1);
           if (more.sum().item<double>() > 0) more = net.layer(3, more) + net.layer(0, more);
           h = h + more;
         }
         return error_of_rows(net.layer(3, torch::tanh(h)), micro[1]);
       }},
      {"all is left out but a head",
       [](HabitNetImpl& net, const Tensors& micro) {
         Tensor h = micro[0];
         for (int i = 0; i + 1 < kLayers; ++i) {
           const Tensor mine = rows_of(h, micro[2], i);
           if (mine.any().item<bool>()) h = torch::tanh(net.layer(i, h));
         }
         return error_of_rows(net.layer(kLayers - 1, h), micro[1]);
       }},
  };
  return all;
}

/// What each rank threw, if anything: three steps beside one device's, of batches that take other
/// branches each.
std::vector<std::string> trained(const std::string& kind, const Habit& habit, bool example) {
  constexpr int kMicroBatches = 4, kSteps = 3;
  // Before there are ranks: a schedule sets the generator that threads share.
  std::vector<Tensors> batches;
  for (int seed = 0; seed <= kSteps; ++seed) {
    batches.push_back(make_seeded(seed, [] { return habit_batch(); }));
  }
  std::vector<std::string> errors(2);
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    HabitNet reference = make_seeded(7, [] { return HabitNet(); }),
             net = make_seeded(7, [] { return HabitNet(); });
    pipeline_parity::make_double(*reference);
    pipeline_parity::make_double(*net);
    InitializeOptions how;
    how.world = world;
    if (example) how.example_inputs = [&] { habit(*net, batches[0]); };
    try {
      const auto config = Config::parse(habit_config({1, 1, 2}, kind));
      const ParallelModel parallel = initialize(net, config, how);
      PipelineSchedule schedule(parallel,
                                PipelineOptions().num_microbatches(kMicroBatches).kind(kind));
      torch::optim::SGD optimizer(net->parameters(), 0.1), one(reference->parameters(), 0.1);
      for (int step = 1; step <= kSteps; ++step) {
        optimizer.zero_grad();
        one.zero_grad();
        double expected = 0;
        for (const Tensors& micro : pipeline_parity::divided(batches[step], kMicroBatches)) {
          const Tensor own = habit(*reference, micro) / kMicroBatches;
          own.backward();
          expected += own.item<double>();
        }
        const auto result = schedule.forward_backward_step(
            batches[step], [&](const Tensors& micro) { return habit(*net, micro); });
        EXPECT_NEAR(result.loss.item<double>(), expected, 1e-9);
        pipeline_parity::expect_gradients(*net, *reference);
        optimizer.step();
        one.step();
      }
      parity::expect_weights(*net, *reference);
    } catch (const Error& error) {
      errors[world.rank()] = error.what();
    }
  });
  return errors;
}

class LeftOutExperts : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Under, LeftOutExperts, ::testing::ValuesIn(pipeline::schedule_kinds()),
                         [](const auto& info) { return info.param; });

TEST_P(LeftOutExperts, TrainOrAreRefusedByNameOnEveryRank) {
  for (const auto& [name, habit] : mixtures()) {
    for (const bool example : {true, false}) {
      SCOPED_TRACE(c10::str(name, example ? ", with an example" : ""));
      const std::vector<std::string> errors = trained(GetParam(), habit, example);
      if (errors != std::vector<std::string>(2)) {
        // The schedule would wait for ever; or a stage lacks a layer that the branch needs there.
        EXPECT_THAT(errors,
                    Each(AnyOf(HasSubstr("cannot run this model"),
                               AllOf(HasSubstr("lives on stage"), HasSubstr("plan it for both")))));
        EXPECT_THAT(errors, Each(Not(HasSubstr("waited"))));
      }
    }
  }
}

}  // namespace
}  // namespace oslo::test
