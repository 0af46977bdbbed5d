// What a forward may do with values that lie on several pipeline stages, each against one device.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/pipeline_habits_test/habit_net.h"

namespace oslo::test {
namespace {

using torch::indexing::Slice;

/// How many rows there are is known to the stage that has the mask; they have gradients everywhere.
TEST(PipelineValues, RowsByAMaskCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.layer(0, micro[0]);
    const Tensor rows = h.index({h.select(1, 0) > 0});
    return net.layer(3, rows).pow(2).sum() / 12 + net.layer(1, h).pow(2).mean();
  });
}

TEST(PipelineValues, ElementsByAMaskCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.layer(0, micro[0]);
    const Tensor above = torch::masked_select(h, h > 0.1);
    Tensor scaled = above * net.layers[3]->bias[0];
    scaled.add_(1);
    return scaled.pow(2).sum() / 12;
  });
}

TEST(PipelineValues, RowsByNumbersThatWereFoundCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.layer(0, micro[0]);
    const Tensor found = (h.sum(1) > 0).nonzero().squeeze(1);
    const Tensor rows = net.layer(2, h.index_select(0, found));
    return net.layer(3, rows).pow(2).sum() / 12 + h.pow(2).mean();
  });
}

TEST(PipelineValues, LengthsChangeFromMicroBatchToMicroBatch) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const int64_t length = 2 + micro[2][0][0].item<int64_t>() % 3;
    const Tensor words = net.layer(0, net.table(micro[2].slice(1, 0, length)));
    return error_of_rows(net.layer(3, torch::tanh(net.layer(2, words))).mean(1), micro[1]);
  });
}

TEST(PipelineValues, SpectraCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor spectrum = torch::fft::rfft(net.layer(0, micro[0]));
    const Tensor real = net.layers[3]->weight[0].slice(0, 0, 4);
    const Tensor filtered =
        spectrum * torch::complex(real, net.layers[3]->weight[1].slice(0, 0, 4));
    const Tensor back = torch::fft::irfft(filtered, kWide) + torch::view_as_real(spectrum).mean();
    return error_of_rows(net.layer(2, back), micro[1]);
  });
}

TEST(PipelineValues, RotationsByComplexNumbersCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const auto angles = torch::arange(3, torch::kDouble) * 0.3;
    const Tensor turn = torch::polar(torch::ones(3, torch::kDouble), angles);
    const Tensor pairs = torch::view_as_complex(net.layer(0, micro[0]).view({-1, 3, 2}));
    const Tensor turned = torch::view_as_real(pairs * turn * net.layers[2]->bias[0]).flatten(1);
    return error_of_rows(net.layer(3, turned), micro[1]);
  });
}

/// An early exit: which stage has the loss depends on the micro-batch.
TEST(PipelineValues, TheLossOfEachMicroBatchLiesOnAStageOfItsOwn) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    if (micro[2][0][0].item<int64_t>() % 2 == 0) return error_of_rows(h, micro[1]);
    return error_of_rows(net.layer(3, h), micro[1]);
  });
}

TEST(PipelineValues, BatchNormAndItsStatistics) {
  for (const bool example : {true, false}) {
    HabitTrial how;
    how.example = example;
    expect_habit(
        [](HabitNetImpl& net, const Tensors& micro) {
          const Tensor h = torch::relu(net.norm(net.layer(0, micro[0])));
          return error_of_rows(net.layer(3, h), micro[1]);
        },
        how);
  }
}

/// As in ALBERT: every stage has a copy of it.
TEST(PipelineValues, ALayerThatEveryStageUses) {
  for (const bool example : {true, false}) {
    HabitTrial how;
    how.example = example;
    expect_habit(
        [](HabitNetImpl& net, const Tensors& micro) {
          Tensor h = micro[0];
          for (int i = 0; i < kLayers; ++i) h = torch::tanh(net.layer(0, h)) + net.layer(i, h);
          return error_of_rows(net.layer(0, h), micro[1]);
        },
        how);
  }
}

TEST(PipelineValues, LoopsUntilAValueIsLargeEnough) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    Tensor h = net.layer(0, micro[0]);
    int turns = 0;
    while (h.norm().item<double>() < 40 && turns++ < 6) h = h * 1.5 + net.layer(1, h);
    h = net.layer(2, h);
    if (h.sum().item<double>() > 0) h = torch::tanh(net.layer(3, h));
    return error_of_rows(h, micro[1]);
  });
}

/// What is drawn for a value, and how it is rounded, follows its memory.
TEST(PipelineValues, ChannelsLastCrosses) {
  std::atomic<int> seen = 0;
  expect_habit([&](HabitNetImpl& net, const Tensors& micro) {
    const Tensor pixels = micro[0].view({-1, 1, 1, kWide}) +
                          torch::arange(15, torch::kDouble).view({1, 3, 5, 1}) / 15;
    const Tensor image = torch::tanh(net.layer(0, pixels)).permute({0, 3, 1, 2});
    const Tensor y = image * net.layers[3]->bias.view({1, kWide, 1, 1});
    if (is_placed(y) && is_here(y) && !value_of(y).local.is_meta()) {
      EXPECT_TRUE(local_tensor(y).is_contiguous(at::MemoryFormat::ChannelsLast));
      ++seen;
    }
    return error_of_rows(net.layer(3, y.mean({2, 3})), micro[1]);
  });
  EXPECT_GT(seen, 50);
}

/// Zeros, which the run on shapes has in their place, never end these.
TEST(PipelineValues, LoopsThatValuesAloneEnd) {
  const std::vector<Habit> habits{
      [](HabitNetImpl& net, const Tensors& micro) {
        Tensor h = net.layer(0, micro[0]);
        while (h.norm().item<double>() < 20) h = h * 1.5 + 0.1 * torch::tanh(net.layer(0, h));
        return error_of_rows(net.layer(3, net.layer(1, h / 20)), micro[1]);
      },
      [](HabitNetImpl& net, const Tensors& micro) {  // a fixed point
        const Tensor h = net.layer(0, micro[0]);
        Tensor z = torch::zeros_like(h), before;
        do {
          before = z;
          z = 0.1 * torch::tanh(net.layer(2, z)) + h;
        } while (!torch::allclose(z, before, 1e-3, 1e-3));
        return error_of_rows(net.layer(3, z), micro[1]);
      },
      [](HabitNetImpl& net, const Tensors& micro) {  // each row until it has enough
        Tensor h = net.layer(0, micro[0]);
        Tensor done = h.norm(2, 1) > 3;
        while (!done.all().item<bool>()) {
          h = torch::where(done.unsqueeze(1), h, h * 1.4 + 0.1);
          done = done.logical_or(h.norm(2, 1) > 3);
        }
        return error_of_rows(net.layer(3, net.layer(2, h)), micro[1]);
      }};
  for (const Habit& habit : habits) {
    for (const bool example : {true, false}) {
      HabitTrial how;
      how.example = example;
      how.runs = {{{1, 1, 2}, "1f1b"}, {{1, 2, 2}, "gpipe"}, {{1, 1, 2}, "zbv"}};
      expect_habit(habit, how);
    }
  }
}

/// No expert has a word in the run on shapes, where masks are empty.
TEST(PipelineValues, ExpertsThatHaveNoWordAreLeftOut) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    Tensor h = micro[0] + net.table(micro[2]).mean(1);
    for (int i = 0; i < kLayers; i += 2) {
      h = torch::tanh(net.layer(i, h));
      const Tensor expert = h.slice(1, 0, 3).argmax(1);
      Tensor out = torch::zeros_like(h);
      for (int e = 0; e < 3; ++e) {
        const Tensor mine = expert == e;
        if (!mine.any().item<bool>()) continue;
        const Tensor rows = mine.nonzero().squeeze(1);
        out = out.index_add(0, rows, net.layer(i + 1, h.index_select(0, rows)) * (1 + e));
      }
      h = h + out;
    }
    return error_of_rows(h, micro[1]);
  });
}

TEST(PipelineValues, WritesInPlaceBeforeAndAfterACrossing) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    Tensor h = net.layer(0, micro[0]);
    h.mul_(0.5);
    const Tensor first = net.layer(3, h.clone());
    h = torch::relu_(h.add_(0.25));
    const Tensor second = net.layer(3, h);
    Tensor sum = first + second;
    sum.slice(1, 0, 3).mul_(2);
    sum.index_put_({Slice(), 4}, sum.select(1, 4).detach() * 0.5);
    return error_of_rows(net.layer(2, sum.tanh_()), micro[1]);
  });
}

TEST(PipelineValues, ViewsOfAValueThatIsWrittenBetweenStages) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.layer(0, micro[0]).clone();
    const Tensor left = h.narrow(1, 0, 3);
    const Tensor before = net.layer(3, torch::cat({left, left}, 1));
    left.mul_(2);
    const Tensor after = net.layer(3, h) + before;
    return error_of_rows(after, micro[1]);
  });
}

/// An ordinary tensor of the program, filled with values of several stages.
TEST(PipelineValues, ACacheOfTheProgram) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    std::vector<Tensor> kept;
    Tensor h = micro[0];
    for (int i = 0; i < kLayers; ++i) {
      h = torch::tanh(net.layer(i, h));
      Tensor cache = torch::zeros({h.size(0), 2, kWide}, h.options());
      cache.select(1, 0).copy_(h.detach());
      cache.select(1, 1).copy_(2 * h.detach());
      Tensor whole = torch::zeros({h.size(0), kWide}, h.options());
      whole.copy_(h);
      kept.push_back(cache.sum(1) * whole);
    }
    return error_of_rows(torch::stack(kept).sum(0), micro[1]);
  });
}

TEST(PipelineValues, NumbersAndMasksCross) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.table(micro[2]).mean(1) + net.layer(0, micro[0]);
    const Tensor words = std::get<1>(torch::cat({h, h}, 1).slice(1, 0, kWords).max(1));
    const Tensor positive = h > 0, order = h.argsort(1, false);
    Tensor y = net.layer(3, net.late(words)).masked_fill(positive, 0.5);
    y = y.gather(1, order) + torch::one_hot(words, kWords).slice(1, 0, kWide) * 0.1;
    y = torch::where(positive.logical_not(), y, h * 0.5) +
        words.unsqueeze(1).to(torch::kInt) * 0.01;
    return error_of_rows(y, micro[1]);
  });
}

/// A mixture of experts of which one gets no row, as Mixtral writes it: other stages run it on
/// shapes, whose kernel for `index_add` knows no empty index.
TEST(PipelineValues, ExpertsWithoutRows) {
  HabitTrial how;
  how.runs = {{{1, 1, 2}, "1f1b"}, {{1, 1, 4}, "gpipe"}, {{1, 2, 2}, "1f1b"}, {{1, 1, 2}, "zbv"}};
  for (const bool in_place : {false, true}) {
    expect_habit(
        [in_place](HabitNetImpl& net, const Tensors& micro) {
          const Tensor h = net.layer(0, micro[0]);
          const Tensor expert = (h.detach().sum(1) > 0).to(torch::kLong);  // never the third
          Tensor out = torch::zeros_like(h);
          for (int i = 0; i < 3; ++i) {
            const Tensor rows = (expert == i).nonzero().squeeze(1);
            const Tensor result = torch::tanh(net.layer(1 + i, h.index_select(0, rows)));
            if (in_place) {
              out.index_add_(0, rows, result);
            } else {
              out = out.index_add(0, rows, result)
                        .index_add(1, torch::empty({0}, torch::kLong), h.slice(1, 0, 0));
            }
            out = out + torch::zeros_like(h).index_reduce(0, rows, result.detach(), "mean");
          }
          return error_of_rows(net.layer(3, out), micro[1]);
        },
        how);
  }
}

}  // namespace
}  // namespace oslo::test
