// A sparse matrix (neighbours in a graph) beside a dense one that is cut: no part of it is taken.
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;

TEST(Sparse, StaysWholeBesideWhatIsCut) {
  const auto product = [](const Tensor& x) {
    const Tensor next = torch::eye(5, torch::kDouble).roll(1, 0) * 2;
    return torch::mm(next.to_sparse(), x);
  };
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [&](const MPU& mpu) {
      for (const int64_t dim : {0, 1}) {
        const Tensor whole = leaf(numbers({5, 7})), own = leaf(whole);
        const Tensor expected = product(whole * 2), actual = product(placed(own, mpu, dim) * 2);
        expect_close(actual, expected, "product");
        EXPECT_EQ(is_placed(actual), dim == 1);
        expected.pow(2).sum().backward();
        actual.pow(2).sum().backward();
        expect_close(own.grad(), whole.grad(), "gradient");
      }
    });
  }
}

}  // namespace
}  // namespace oslo
