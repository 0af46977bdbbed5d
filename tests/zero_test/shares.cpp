// Who steps what.
#include "parallelizers/data/zero/state_shares.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

/// Rank by rank the pieces of each bucket, as text: every element once, a rank at most one piece of
/// a parameter.
std::string shares(const Tensors& parameters, int ranks, ShareUnit unit, int64_t bytes) {
  std::vector<std::vector<int64_t>> elements;
  const std::vector<SharedRows> rows = RowSharing(unit, ranks).share(parameters);
  for (size_t i = 0; i < parameters.size(); ++i) {
    elements.push_back(elements_of_ranks(parameters[i], rows[i], ranks));
  }
  std::vector<int64_t> seen(parameters.size(), 0);
  std::string text;
  for (const SharedBucket& bucket : shared_buckets(parameters, elements, bytes)) {
    text += "[";
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t all = 0;
      if (rank > 0) text += " |";
      for (const SharedPiece& piece : bucket.of_rank[rank]) {
        EXPECT_EQ(piece.start, seen[piece.parameter]);
        seen[piece.parameter] += piece.length;
        all += piece.length;
        text += c10::str(" ", piece.parameter, ":", piece.start, "+", piece.length);
      }
      EXPECT_EQ(all, bucket.sizes[rank]);
    }
    text += " ]";
  }
  for (size_t i = 0; i < parameters.size(); ++i) EXPECT_EQ(seen[i], parameters[i].numel());
  return text;
}

TEST(ZeroShares, AreRowsOfWhichRanksGetOneMoreInTurn) {
  const Tensors three = {torch::zeros({5, 2}), torch::zeros({}), torch::zeros({4})};
  EXPECT_EQ(shares(three, 3, ShareUnit::rows, 1 << 20),
            "[ 0:0+4 2:0+2 | 0:4+4 2:2+1 | 0:8+2 1:0+1 2:3+1 ]");
  const Tensors one_each = {torch::zeros({1, 2}), torch::zeros({1}), torch::zeros({1, 1})};
  EXPECT_EQ(shares(one_each, 2, ShareUnit::rows, 1 << 20), "[ 0:0+1 1:0+1 | 0:1+1 2:0+1 ]");
  EXPECT_EQ(shares({torch::zeros({2})}, 4, ShareUnit::rows, 1), "[ 0:0+1 | 0:1+1 | | ]");
  EXPECT_EQ(shares({torch::zeros({0}), torch::zeros({1})}, 2, ShareUnit::rows, 9), "[ 1:0+1 | ]");
}

TEST(ZeroShares, AreRowsOfTheDimensionThatIsOutermostInMemory) {
  EXPECT_EQ(shares({torch::zeros({4, 3}).t()}, 2, ShareUnit::rows, 1 << 20), "[ 0:0+6 | 0:6+6 ]");
}

TEST(ZeroShares, OfHalvesAreWholeVectors) {
  const Tensor half = torch::zeros({200, 3}, torch::kBFloat16);
  EXPECT_EQ(shares({half}, 2, ShareUnit::rows, 1 << 20), "[ 0:0+384 | 0:384+216 ]");
}

TEST(ZeroShares, BucketsAreOfOneTypeAndFullAtTheirBytes) {
  const Tensors mixed = {torch::zeros({4}), torch::zeros({3}, torch::kDouble), torch::zeros({2}),
                         torch::zeros({1})};
  EXPECT_EQ(shares(mixed, 2, ShareUnit::rows, 16),
            "[ 0:0+2 | 0:2+2 ][ 2:0+1 | 2:1+1 3:0+1 ][ 1:0+2 | 1:2+1 ]");
}

TEST(ZeroShares, OfTensorsHaveAboutEquallyManyBytes) {
  const Tensors four = {torch::zeros({7}), torch::zeros({5}), torch::zeros({3}), torch::zeros({2})};
  EXPECT_EQ(shares(four, 2, ShareUnit::tensors, 1 << 20), "[ 0:0+7 3:0+2 | 1:0+5 2:0+3 ]");
}

}  // namespace
}  // namespace oslo::zero_test
