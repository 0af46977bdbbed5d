// Tables with sparse(true): the gradient of one that is cut is dense, of the same values.
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;

TEST(MarkedParameters, TablesWithSparseGradientsTrain) {
  const Tensor indices = torch::tensor({1, 6, 0, 6, 3, 3, 5}), offsets = torch::tensor({0, 2, 5});
  const auto bags = [&](int64_t mode) {
    return [&, mode](const Tensor& table) {
      return std::get<0>(torch::embedding_bag(table, indices, offsets, false, mode, true));
    };
  };
  const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> uses = {
      {"embedding",
       [&](const Tensor& table) {
         return torch::embedding(table, indices, /*padding_idx=*/3, false, /*sparse=*/true);
       }},
      {"sums of bags", bags(0)},
      {"means of bags", bags(1)},
  };
  on_ranks(3, [&](const MPU& mpu) {
    for (const auto& [name, use] : uses) {
      for (const int64_t dim : {0, 1}) {
        const std::string what = name + ", cut along " + std::to_string(dim);
        const Tensor w = leaf(numbers({7, 5})), p = leaf(w);
        mark(p, mpu, dim);
        torch::optim::SGD one({w}, torch::optim::SGDOptions(0.1));
        torch::optim::SGD many({p}, torch::optim::SGDOptions(0.1));
        for (int step = 0; step < 2; ++step) {
          one.zero_grad();
          many.zero_grad();
          for (int part = 0; part < 2; ++part) {  // the second is added to the first
            use(w).pow(2 + part).sum().backward();
            use(p).pow(2 + part).sum().backward();
          }
          ASSERT_TRUE(w.grad().is_sparse()) << what;
          expect_close(p.grad(), w.grad().to_dense(), what + ", gradient");
          one.step();
          many.step();
          expect_close(p, w, what);
        }
      }
    }
  });
}

}  // namespace
}  // namespace oslo
