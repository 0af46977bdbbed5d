#include "tests/support/rule_case.h"

// Sums of products, recurrent layers and Fourier transforms.
namespace rule_case {
namespace {

/// All results of an operator that returns a pair.
template <typename Pair>
Function both(Pair function) {
  return [function](X x) -> Tensors {
    const auto [first, second] = function(x);
    return {first, second};
  };
}

std::vector<Case> contraction_cases() {
  const auto einsum = [](const std::string& equation) {
    return [equation](X x) -> Tensors { return {at::einsum(equation, x)}; };
  };
  const auto fused = [](auto function) {
    return of([=](X x) { return function(x[0], x[1], x[2]); });
  };
  const auto product = fused(
      [](const auto& c, const auto& a, const auto& b) { return at::baddbmm(c, a, b, 0.5, 2.0); });
  return {
      {"heads",
       {random({2, 5, 6, 3}, {cut(2)}), random({2, 4, 6, 3}, {cut(2)})},
       einsum("bqhd,bkhd->bhqk"),
       0,
       0},
      {"summed dimension cut",
       {random({2, 6, 5}, {cut(1)}), random({6, 5, 3}, {cut(0)})},
       einsum("bhd, hdm -> bm"),
       0,
       1},
      {"second of two summed cut",
       {random({2, 3, 6}, {cut(2)}), random({6, 3, 4}, {cut(0)})},
       einsum("bhd,dhm->bm"),
       0,
       1},
      {"ellipsis, implicit result",
       {random({5, 3, 2}, {cut(0)}), random({2, 4})},
       einsum("...i,ij"),
       0,
       1},
      {"ellipsis of other lengths",
       {random({3, 2, 6}, {cut(2)}), random({3, 1, 6, 4}, {cut(2)})},
       einsum("...i,...ij->...j"),
       0,
       1},
      {"a diagonal: gathered", {random({4, 4, 5}, {cut(0)})}, einsum("iij->ij"), 1},
      {"a row and column sum", {random({5, 4}, {cut(0)})}, einsum("ij->j"), 0, 1},
      {"three operands",
       {random({5, 3}, {cut(0)}), random({3, 4}), random({4, 2})},
       einsum("ab,bc,cd->ad"),
       0,
       2},
      {"tensordot",
       {random({5, 3, 2}, {cut(0)}), random({2, 4, 3})},
       of([](X x) {
         return at::tensordot(x[0], x[1], {1, -1}, {2, 0});
       }),
       0,
       1},
      {"tensordot over the cut",
       {random({4, 5, 3}, {cut(1)}), random({3, 5}, {cut(1)})},
       of([](X x) {
         return at::tensordot(x[0], x[1], {2, 1}, {0, 1});
       }),
       0,
       1},
      {"bilinear, rows cut",
       {random({5, 2, 3}, {cut(0)}), random({5, 2, 4}), random({6, 3, 4}), random({6})},
       of([](X x) { return at::bilinear(x[0], x[1], x[2], x[3]); }),
       0,
       2},
      {"bilinear, outputs cut",
       {random({5, 3}), random({5, 4}), random({6, 3, 4}, {cut(0)}), random({6}, {cut(0)})},
       of([](X x) { return at::bilinear(x[0], x[1], x[2], x[3]); }),
       0,
       2},
      {"outer",
       {random({5}, {cut(0)}), random({3})},
       of([](X x) { return at::outer(x[0], x[1]); }),
       0,
       1},
      {"baddbmm, batch cut",
       {random({3, 2}), random({5, 3, 4}, {cut(0)}), random({5, 4, 2})},
       product,
       0,
       1},
      {"baddbmm, summed dimension cut",
       {random({5, 3, 2}), random({5, 3, 4}, {cut(2)}), random({5, 4, 2}, {cut(1)})},
       product,
       0,
       1},
      {"addbmm, batch cut",
       {random({3, 2}), random({5, 3, 4}, {cut(0)}), random({5, 4, 2})},
       fused([](const auto& c, const auto& a, const auto& b) { return at::addbmm(c, a, b); }),
       0,
       1},
      {"addmv",
       {random({5}, {cut(0)}), random({5, 3}, {cut(0)}), random({3})},
       fused([](const auto& c, const auto& a, const auto& b) { return at::addmv(c, a, b); }),
       0,
       1},
      {"addr",
       {random({5, 3}, {cut(0)}), random({5}, {cut(0)}), random({3})},
       fused([](const auto& c, const auto& a, const auto& b) { return at::addr(c, a, b, 2.0); }),
       0,
       1},
      {"addmm in place",
       {random({5, 2}, {cut(0)}), random({5, 3}, {cut(0)}), random({3, 2})},
       fused(
           [](const auto& c, const auto& a, const auto& b) { return c.clone().addmm_(a, b, 0.5); }),
       0,
       1},
      {"cdist, points cut",
       {random({2, 5, 3}, {cut(1)}), random({1, 4, 3})},
       of([](X x) { return at::cdist(x[0], x[1]); }),
       0,
       1},
      {"cdist, coordinates cut: gathered",
       {random({5, 3}, {cut(1)}), random({4, 3})},
       of([](X x) { return at::cdist(x[0], x[1], 1.0); }),
       1},
      {"cross",
       {random({5, 3}, {cut(0)}), random({1, 3})},
       of([](X x) { return at::linalg_cross(x[0], x[1]); }),
       0,
       1},
  };
}

std::vector<Case> recurrent_cases() {
  const auto operands = [](int64_t gates, bool batch_first) {
    const std::vector<int64_t> sizes =
        batch_first ? std::vector<int64_t>{5, 2, 3} : std::vector<int64_t>{2, 5, 3};
    return std::vector<Operand>{random(sizes, {cut(batch_first ? 0 : 1)}),
                                random({1, 5, 4}, {cut(1)}),
                                random({gates * 4, 3}),
                                random({gates * 4, 4}),
                                random({gates * 4}),
                                random({gates * 4})};
  };
  const auto lstm = [](bool batch_first) {
    return [=](X x) -> Tensors {
      const auto [y, h, c] = at::lstm(x[0], {x[1], x[1] * 2}, {x[2], x[3], x[4], x[5]}, true, 1,
                                      0.0, true, false, batch_first);
      return {y, h, c};
    };
  };
  auto single = operands(4, true);
  single[0] = random({1, 2, 3}, {cut(0)});
  single[1] = random({1, 1, 4}, {cut(1)});
  auto features = operands(4, false);
  features[0].placements = {cut(2)};
  features[1].placements = {};
  return {
      {"lstm, batch cut: four copies", operands(4, false), lstm(false), 0, 4},
      {"lstm, batch first", operands(4, true), lstm(true), 0, 4},
      {"lstm, an empty rank", single, lstm(true), 0, 4},
      {"lstm, features cut: gathered", features, lstm(false), 1},
      {"gru, batch cut", operands(3, false), both([](X x) {
         return at::gru(x[0], x[1], {x[2], x[3], x[4], x[5]}, true, 1, 0.0, true, false, false);
       }),
       0, 4},
      {"rnn, batch cut", operands(1, false), both([](X x) {
         return at::rnn_tanh(x[0], x[1], {x[2], x[3], x[4], x[5]}, true, 1, 0.0, true, false,
                             false);
       }),
       0, 4},
      {"lstm cell",
       {random({5, 3}, {cut(0)}), random({5, 4}), random({16, 3}), random({16, 4}), random({16}),
        random({16})},
       both([](X x) {
         return at::lstm_cell(x[0], {x[1], x[1] * 2}, x[2], x[3], x[4], x[5]);
       }),
       0},
      {"lstm cell, gates cut",
       {random({5, 3}), random({5, 4}), random({16, 3}, {cut(0, 4)}), random({16, 4}, {cut(0, 4)}),
        random({16}, {cut(0, 4)}), random({16}, {cut(0, 4)})},
       both([](X x) {
         return at::lstm_cell(x[0], {x[1], x[1] * 2}, x[2], x[3], x[4], x[5]);
       }),
       0},
      {"gru cell, gates cut",
       {random({5, 3}), random({5, 4}), random({12, 3}, {cut(0, 3)}), random({12, 4}, {cut(0, 3)}),
        random({12}, {cut(0, 3)}), random({12}, {cut(0, 3)})},
       of([](X x) { return at::gru_cell(x[0], x[1], x[2], x[3], x[4], x[5]); }),
       0},
      {"rnn cell, rows cut",
       {random({5, 3}, {cut(0)}), random({5, 4}), random({4, 3}), random({4, 4})},
       of([](X x) { return at::rnn_tanh_cell(x[0], x[1], x[2], x[3]); }),
       0,
       2},
      {"rnn cell, weights cut",
       {random({5, 3}), random({5, 4}), random({4, 3}, {cut(0)}), random({4, 4}, {cut(0)})},
       of([](X x) { return at::rnn_relu_cell(x[0], x[1], x[2], x[3]); }),
       0,
       2},
      {"gru cell",
       {random({5, 3}, {cut(0)}), random({5, 4}), random({12, 3}), random({12, 4}), random({12}),
        random({12})},
       of([](X x) { return at::gru_cell(x[0], x[1], x[2], x[3], x[4], x[5]); }),
       0},
  };
}

/// Weights cut by hidden unit, beside states, features and batches that are whole or cut.
std::vector<Case> hidden_unit_cases() {
  const auto weights = [](int64_t gates, int64_t features, int64_t units) {
    const int64_t rows = gates * units;
    const std::vector<Placement> cuts{cut(0, gates)};
    return std::vector<Operand>{random({rows, features}, cuts), random({rows, units}, cuts),
                                random({rows}, cuts), random({rows}, cuts)};
  };
  const auto with = [](std::vector<Operand> operands, const std::vector<Operand>& weights) {
    operands.insert(operands.end(), weights.begin(), weights.end());
    return operands;
  };
  const auto lstm = [](X x) -> Tensors {
    const auto [y, h, c] =
        at::lstm(x[0], {x[1], x[2]}, {x[3], x[4], x[5], x[6]}, true, 1, 0.0, true, false, false);
    return {y, h, c};
  };
  const auto gru = both([](X x) {
    return at::gru(x[0], x[1], {x[2], x[3], x[4], x[5]}, true, 1, 0.0, true, false, true);
  });
  auto bias_whole = weights(3, 3, 5);
  bias_whole[2].placements = bias_whole[3].placements = {};
  auto other_blocks = weights(3, 3, 4);
  for (Operand& weight : other_blocks) weight.placements = {cut(0)};
  const auto x = [](std::vector<Placement> cuts = {}) { return random({2, 5, 3}, cuts); };
  const auto state = [](std::vector<Placement> cuts = {}) { return random({1, 5, 7}, cuts); };
  return {
      {"lstm, by hidden unit: copies of the input and the state",
       with({x(), state(), state()}, weights(4, 3, 7)), lstm, 0, 2},
      {"lstm, states cut", with({x(), state({cut(2)}), state({cut(2)})}, weights(4, 3, 7)), lstm, 0,
       1},
      {"lstm, features cut", with({x({cut(2)}), state(), state()}, weights(4, 3, 7)), lstm, 0, 1},
      {"lstm, batch cut on the same ranks",
       with({x({cut(1)}), state({cut(1)}), state({cut(1)})}, weights(4, 3, 7)), lstm, 0},
      {"lstm, no gradient of the state",
       with({random({1, 5, 3}), state(), state()}, weights(4, 3, 7)),
       [lstm](X x) {
         Tensors detached = x;
         detached[1] = x[1].detach();
         detached[2] = x[2].detach();
         return lstm(detached);
       },
       0, 1},
      {"gru, whole biases keep their part",
       with({random({5, 2, 3}), random({1, 5, 5})}, bias_whole), gru, 0, 2},
      {"gru, cut in other blocks: gathered",
       with({random({5, 2, 3}), random({1, 5, 4})}, other_blocks), gru, 4},
      {"rnn, a rank of three without units",
       with({random({2, 5, 3}), random({1, 5, 2})}, weights(1, 3, 2)), both([](X x) {
         return at::rnn_relu(x[0], x[1], {x[2], x[3], x[4], x[5]}, true, 1, 0.0, true, false,
                             false);
       }),
       0, 2},
      {"gru, packed", with({random({9, 3}), random({1, 4, 5})}, weights(3, 3, 5)), both([](X x) {
         return at::gru(x[0], at::tensor({4, 3, 2}, at::kLong), x[1], {x[2], x[3], x[4], x[5]},
                        true, 1, 0.0, true, false);
       }),
       0, 2},
      {"lstm cell, states cut",
       with({random({5, 3}), random({5, 7}, {cut(1)}), random({5, 7}, {cut(1)})}, weights(4, 3, 7)),
       both([](X x) {
         return at::lstm_cell(x[0], {x[1], x[2]}, x[3], x[4], x[5], x[6]);
       }),
       0, 1},
      {"gru cell, state cut", with({random({5, 3}), random({5, 5}, {cut(1)})}, weights(3, 3, 5)),
       of([](X x) { return at::gru_cell(x[0], x[1], x[2], x[3], x[4], x[5]); }), 0, 1},
  };
}

std::vector<Case> spectral_cases() {
  const auto x = [] { return random({5, 6}, {cut(0)}); };
  const auto stft = of([](X t) {
    const at::Tensor window = at::hann_window(8, at::kDouble);
    return at::view_as_real(at::stft(t[0], 8, 4, 8, window, true, "reflect", false, true, true));
  });
  return {
      {"rfft beside the cut", {x()}, of([](X t) { return at::fft_rfft(t[0]).abs(); }), 0, 0},
      {"irfft beside the cut",
       {x()},
       of([](X t) { return at::fft_irfft(at::fft_rfft(t[0]), 6); }),
       0,
       0},
      {"rfft along the cut: gathered",
       {x()},
       of([](X t) { return at::fft_rfft(t[0], {}, 0).abs(); }),
       1},
      {"rotation of pairs as complex numbers",
       {random({5, 3, 2}, {cut(0)}), random({3})},
       of([](X t) {
         const at::Tensor turn = at::polar(at::ones({3}, at::kDouble), t[1].detach());
         return at::view_as_real(at::view_as_complex(t[0]) * turn.conj());
       }),
       0,
       0},
      {"fft of both: gathered", {x()}, of([](X t) { return at::fft_fft2(t[0]).abs(); }), 1},
      {"fft of numbers that are complex and cut: gathered",
       {x()},
       of([](X t) { return at::fft_fft(at::fft_fft(t[0]), {}, 0).abs(); }),
       1},
      {"stft, signals cut", {random({5, 40}, {cut(0)})}, stft, 0, 0},
      {"stft, an empty rank", {random({1, 40}, {cut(0)})}, stft, 0, 0},
      {"stft along the cut: gathered", {random({2, 40}, {cut(1)})}, stft, 1},
      {"istft",
       {random({5, 40}, {cut(0)})},
       of([](X t) {
         const at::Tensor window = at::hann_window(8, at::kDouble);
         return at::istft(at::stft(t[0], 8, 4, 8, window, true, "reflect", false, true, true), 8, 4,
                          8, window);
       }),
       0,
       0},
  };
}

class RulesContraction : public testing::TestWithParam<int> {};

TEST_P(RulesContraction, Contractions) {
  expect({GetParam()}, contraction_cases());
}
TEST_P(RulesContraction, Recurrent) {
  expect({GetParam()}, recurrent_cases());
}
TEST_P(RulesContraction, RecurrentByHiddenUnit) {
  expect({GetParam()}, hidden_unit_cases());
}
TEST_P(RulesContraction, Spectral) {
  expect({GetParam()}, spectral_cases());
}
INSTANTIATE_TEST_SUITE_P(Ranks, RulesContraction, testing::Values(2, 3));

/// Signs that are no letters, and more unnamed dimensions than there are digits.
TEST(RulesContraction, UnusualEquations) {
  const std::vector<int64_t> sizes{1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 5};
  expect({3},
         {
             {"twelve unnamed dimensions", {random(sizes, {cut(1)}), random({3, 5})}, of([](X x) {
                return at::einsum("...j,...j->...", {x[0], x[1]});
              })},
             {"twelve unnamed dimensions, by convention",
              {random(sizes, {cut(12)}), random({3, 5})},
              of([](X x) {
                return at::einsum("...j,...j", {x[0], x[1]});
              })},
         });
  on_ranks({2}, [](const oslo::MeshPtr& mesh) {
    const at::Tensor x = at::ones({4, 6}), y = at::ones({6});
    for (const char* equation : {"\xc3\xa9,\xc3->\xa9", "\xff\xfe,\xfe->\xff", "a-,-->a",
                                 "ab,b->a->b", "a1,1->a", "a{,{->a"}) {
      std::string expected;
      try {
        at::einsum(equation, {x, y});
      } catch (const c10::Error& error) {
        expected = error.what_without_backtrace();
      }
      ASSERT_FALSE(expected.empty()) << equation;
      for (const int64_t dim : {0, 1}) {
        try {
          at::einsum(equation, {oslo::distribute(x, mesh, {cut(dim)}), y});
          ADD_FAILURE() << equation << " was accepted";
        } catch (const c10::Error& error) {
          EXPECT_EQ(error.what_without_backtrace(), expected);
        }
      }
    }
  });
}

TEST(RulesContraction, TwoAxes) {
  expect({2, 2},
         {
             {"einsum over two axes",
              {random({5, 6}, {cut(0), cut(1)}), random({6, 4}, {whole(), cut(0)})},
              of([](X x) {
                return at::einsum("ik,kj->ij", {x[0], x[1]});
              }),
              0,
              2},

             {"bilinear, rows and outputs",
              {random({5, 3}, {cut(0), whole()}), random({5, 4}),
               random({6, 3, 4}, {whole(), cut(0)})},
              of([](X x) { return at::bilinear(x[0], x[1], x[2]); }),
              0,
              3},
             {"lstm, batch on both axes",
              {random({2, 7, 3}, {cut(1), cut(1)}), random({1, 7, 4}), random({16, 3}),
               random({16, 4})},
              of([](X x) {
                return std::get<0>(
                    at::lstm(x[0], {x[1], x[1]}, {x[2], x[3]}, false, 1, 0.0, true, false, false));
              }),
              0,
              4},
             {"lstm, batch on one axis, hidden units on the other",
              {random({2, 7, 3}, {cut(1), whole()}), random({1, 7, 5}),
               random({20, 3}, {whole(), cut(0, 4)}), random({20, 5}, {whole(), cut(0, 4)})},
              of([](X x) {
                return std::get<0>(
                    at::lstm(x[0], {x[1], x[1]}, {x[2], x[3]}, false, 1, 0.0, true, false, false));
              }),
              0},
             {"gru, hidden units on both axes",
              {random({2, 3, 3}), random({1, 3, 5}), random({15, 3}, {cut(0, 3), cut(0, 3)}),
               random({15, 5}, {cut(0, 3), cut(0, 3)})},
              of([](X x) {
                return std::get<0>(
                    at::gru(x[0], x[1], {x[2], x[3]}, false, 1, 0.0, true, false, false));
              }),
              0},
             {"rfft beside one axis, along the other: gathered",
              {random({5, 6, 2}, {cut(0), cut(1)})},
              of([](X x) { return at::fft_rfft(x[0], {}, 1).abs(); }),
              1},
         });
}

}  // namespace
}  // namespace rule_case
