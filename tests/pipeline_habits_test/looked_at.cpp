// Forwards that look at what they compute, or whose shapes values decide: what the run on shapes is
// shown in their place lets it come as far as the real ones do.
#include "tests/pipeline_habits_test/habit_net.h"

namespace oslo::test {
namespace {

/// On a stage that only a run which comes there shows to need the first one's layer.
Tensor through_first(HabitNetImpl& net, const Tensor& h, const Tensors& micro) {
  return error_of_rows(net.layer(0, torch::tanh(h)), micro[1]);
}

void expect_looked_at(const Habit& habit) {
  for (const bool example : {true, false}) {
    HabitTrial how;
    how.example = example;
    how.runs = {{{1, 1, 2}, "1f1b"}, {{1, 2, 2}, "gpipe"}, {{1, 1, 2}, "zbv"}};
    expect_habit(habit, how);
  }
}

/// The largest class is a number that is read on the way, of one stage alone.
TEST(PipelineLookedAt, ClassesThatAreLeftToLibTorch) {
  expect_looked_at([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.layer(0, micro[0]);
    const Tensor hot = torch::one_hot(h.argmax(1)).to(torch::kDouble);
    const Tensor counts = torch::bincount(h.argmax(1)).to(torch::kDouble);
    const Tensor weighted = torch::bincount(h.argmax(1), h.detach().select(1, 0), 3);
    const Tensor y = net.layer(3, h) + hot.sum(1, true) * net.layer(1, h);
    return through_first(net, y * counts.square().sum(), micro) + hot.mean(0).norm() * h.mean() +
           weighted.sum() * h.mean();
  });
}

/// All of it is on one, so that no generator decides it.
TEST(PipelineLookedAt, SamplesOfAValue) {
  expect_looked_at([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.layer(0, micro[0]);
    const Tensor drawn = torch::softmax(h * 1e6, 1).multinomial(1);
    return through_first(net, net.layer(3, h) * h.gather(1, drawn), micro);
  });
}

TEST(PipelineLookedAt, ChecksInTheForward) {
  expect_looked_at([](HabitNetImpl& net, const Tensors& micro) {
    const auto check = [](const Tensor& h) {
      TORCH_CHECK(torch::isfinite(h).all().item<bool>(), "not finite");
      TORCH_CHECK(!torch::isnan(h).any().item<bool>(), "not a number");
      TORCH_CHECK(h.abs().max().item<double>() > 0, "nothing");
      TORCH_CHECK((h.norm() > 1e-6).item<bool>(), "nothing");
      TORCH_CHECK(torch::equal(h, h.clone()) && !torch::allclose(h, h + 1), "not itself");
      if (!torch::isfinite(h).all().is_nonzero()) throw std::runtime_error("not finite");
    };
    Tensor h = net.layer(0, micro[0]);
    check(h);
    h = net.layer(3, h);
    check(h);
    return through_first(net, h, micro);
  });
}

/// Graves 2016: rows go on until their halting probabilities add up to one. Nothing halts zeros,
/// or nothing runs; `asks_first` says which.
Tensor halted(HabitNetImpl& net, const Tensors& micro, bool asks_first) {
  Tensor h = net.layer(0, micro[0]);
  Tensor halting = torch::zeros({h.size(0)}, h.options()), out = torch::zeros_like(h);
  for (int turn = 0; turn < 12 || !asks_first; ++turn) {
    if (asks_first && !(halting < 0.99).any().item<bool>()) break;
    h = torch::tanh(net.layer(1 + turn % 2, h));
    const Tensor p = torch::sigmoid(net.layer(2, h).select(1, 0));
    const Tensor runs = (halting < 0.99).to(h.dtype());
    const Tensor last = (halting + p * runs > 0.99).to(h.dtype()) * runs;
    const Tensor share = p * runs * (1 - last) + last * (1 - halting);
    halting = halting + share;
    out = out + share.unsqueeze(1) * h;
    if (!asks_first && (halting >= 0.99).all().item<bool>()) break;
  }
  return through_first(net, net.layer(3, out), micro);
}

TEST(PipelineLookedAt, AdaptiveComputationTime) {
  for (const bool asks_first : {true, false}) {
    expect_looked_at([asks_first](HabitNetImpl& net, const Tensors& micro) {
      return halted(net, micro, asks_first);
    });
  }
}

struct TransformerOverStagesImpl : torch::nn::Module {
  TransformerOverStagesImpl() {
    const auto options = torch::nn::TransformerOptions(kWide, 2, 4, 4).dim_feedforward(7);
    transformer = register_module(
        "transformer", torch::nn::Transformer(torch::nn::TransformerOptions(options).dropout(0)));
  }
  torch::nn::Transformer transformer{nullptr};
};
TORCH_MODULE(TransformerOverStages);

/// LibTorch's attention compares query and key: a look at what a late stage computed, behind which
/// no schedule that goes back up the ranks could run. With lengths that are alike, and others.
TEST(PipelineLookedAt, NoAttentionLooksAtItsQuery) {
  for (const char* kind : {"1f1b", "zbv", "dualpipev"}) {
    for (const int64_t length : {5, 3}) {
      SCOPED_TRACE(c10::str(kind, ", length ", length));
      Trial trial{{1, 1, 4}, kind, 8};
      trial.steps = 1;
      trial.config =
          c10::str(R"({"parallel": {"pipeline": {"size": 4, "schedule": ")", kind, R"("}}})");
      expect_parity(
          trial, [] { return TransformerOverStages(); },
          [length](int) {
            return Tensors{torch::randn({8, length, kWide}, torch::kDouble),
                           torch::randn({8, 5, kWide}, torch::kDouble)};
          },
          [](auto& net, const Tensors& micro) {
            return net->transformer(micro[0].transpose(0, 1), micro[1].transpose(0, 1))
                .square()
                .mean();
          });
    }
  }
}

}  // namespace
}  // namespace oslo::test
