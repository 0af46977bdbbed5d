// Ranks are compared where they all come by. What one of them runs on its part alone, as an
// ordinary tensor has the sizes of that part, is no such place.
#include "mpu/group/rank_check.h"

#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;

/// Of 5 rows a rank holds 2+2+1, or by whole stretches of `unit` rows 5+0+0.
Tensor cut_by_rows(const Tensor& whole, const MPU& mpu, int64_t unit) {
  Tensor parameter = whole.clone();
  mark_parameter(parameter,
                 std::make_shared<Layout>(
                     make_layout(mpu.tensor_mesh(), {Placement::shard(0, 1, unit)}, whole.sizes())),
                 "w");
  return parameter;
}

TEST(MarkedParameters, OperandsOfAPartsSizesAreNotCompared) {
  on_ranks(3, [](const MPU& mpu) {
    const RankCheckScope compared;
    const torch::NoGradGuard no_grad;
    for (const int64_t unit : {1, 5}) {
      for (const int64_t rows : {1, 5}) {
        const Tensor operand = numbers({rows, 6}, 2.0);
        const auto write = [&](Tensor w) {
          w.mul_(operand).add_(operand, 0.5).addcmul_(operand, operand);
          return w.copy_(operand * w.sum(0, /*keepdim=*/true));
        };
        expect_close(write(cut_by_rows(numbers({5, 6}), mpu, unit)), write(numbers({5, 6})),
                     c10::str(rows, " rows by ", unit));
      }
    }
  });
}

TEST(MarkedParameters, OtherOperandsAreCompared) {
  on_ranks(3, [](const MPU& mpu) {
    const RankCheckScope compared;
    const torch::NoGradGuard no_grad;
    Tensor w = cut_by_rows(numbers({5, 6}), mpu, 1);
    EXPECT_NE(error_of([&] {
                w.mul_(numbers({5, 6}, mpu.tensor_group()->rank()));
              }).find("must be the same on all ranks"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace oslo
