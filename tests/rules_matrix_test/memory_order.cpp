// Random numbers are drawn in memory order: programs whose values lie channels last, or transposed,
// draw the same numbers over ranks as on one device, also where a rank has one channel or the part
// behind a slice is all that is left.
#include <tuple>

#include "tests/support/own_draws.h"
#include "tests/support/placed_values.h"

namespace {

using placed_values::Tensor;

struct DrawingNet {
  Tensor image, first, second;  ///< of 4 channels to 7; of 5 to 3
};

DrawingNet drawing_net(at::MemoryFormat format) {
  using placed_values::numbers;
  return {numbers({2, 4, 5, 6}).contiguous(format), numbers({7, 4, 3, 3}, 0.7).contiguous(format),
          numbers({3, 5, 3, 3}, 1.1).contiguous(format)};
}

/// Everything that is drawn on the way, and the result.
std::vector<Tensor> draw_on_the_way(const DrawingNet& net) {
  std::vector<Tensor> seen;
  const auto noisy = [&](const Tensor& h) {
    seen.push_back(at::randn_like(h));
    seen.push_back(at::empty_like(h).bernoulli_(0.5));
    seen.push_back(at::dropout(h + seen[seen.size() - 2], 0.3, /*train=*/true));
    return seen.back();
  };
  Tensor h = noisy(at::conv2d(net.image, net.first, {}, 1, 1));
  h = noisy(h.slice(1, 0, 5));  // along the cut
  h = noisy(at::conv2d(h, net.second, {}, 1, 1));
  h = noisy(at::softmax(h, 1));  // along cut channels
  h = noisy(h.transpose(1, 3).slice(3, 0, 2));
  h = noisy(at::sigmoid(h.sum(3)));
  seen.push_back(h);
  return seen;
}

class MemoryOrder : public testing::TestWithParam<std::tuple<int, at::MemoryFormat>> {};

TEST_P(MemoryOrder, DrawsOneDevicesNumbers) {
  const int ranks = std::get<0>(GetParam());
  const at::MemoryFormat format = std::get<1>(GetParam());
  constexpr uint64_t kSeed = 23;
  DrawingNet whole = drawing_net(format);
  std::vector<Tensor> expected;
  {
    const oslo::test::OwnDraws draws(kSeed);
    whole.first.set_requires_grad(true);
    whole.second.set_requires_grad(true);
    expected = draw_on_the_way(whole);
    expected.back().sum().backward();
  }
  placed_values::on_ranks(ranks, [&](const oslo::MPU& mpu) {
    const oslo::test::OwnDraws draws(kSeed);
    const DrawingNet plain = drawing_net(format);
    const DrawingNet net{plain.image, placed_values::marked(plain.first, mpu),
                         placed_values::marked(plain.second, mpu)};
    const auto seen = draw_on_the_way(net);
    seen.back().sum().backward();
    for (size_t i = 0; i < seen.size(); ++i) {
      placed_values::expect_close(seen[i], expected[i], "draw " + std::to_string(i));
    }
    placed_values::expect_close(net.first.grad(), whole.first.grad(), "first.grad");
    placed_values::expect_close(net.second.grad(), whole.second.grad(), "second.grad");
  });
}

INSTANTIATE_TEST_SUITE_P(Nets, MemoryOrder,
                         testing::Combine(testing::Values(2, 3),
                                          testing::Values(at::MemoryFormat::Contiguous,
                                                          at::MemoryFormat::ChannelsLast)));

}  // namespace
