// No loops from a node to itself: the diagonal of a matrix that is cut, set in place.
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;

TEST(FillDiagonal, WritesCutMatrices) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [](const MPU& mpu) {
      for (const int64_t dim : {0, 1}) {
        for (const bool wrap : {false, true}) {
          const Tensor one = leaf(numbers({7, 3})), own = marked(one, mpu, dim);
          const auto written = [&](const Tensor& w) {
            Tensor y = w * 2;
            return y.fill_diagonal_(0.5, wrap);
          };
          const Tensor expected = written(one), actual = written(own);
          expect_close(actual, expected, "an activation");
          expected.pow(2).sum().backward();
          actual.pow(2).sum().backward();
          expect_close(own.grad(), one.grad(), "its gradient");
          const torch::NoGradGuard no_grad;
          Tensor(one).fill_diagonal_(0.25, wrap);
          Tensor(own).fill_diagonal_(0.25, wrap);
          expect_close(own, one, "a parameter");
        }
      }
    });
  }
}

}  // namespace
}  // namespace oslo
