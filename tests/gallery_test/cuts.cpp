#include <torch/torch.h>

#include "tests/gallery_test/exhibit.h"

// Operators along a dimension that is cut, and values that are cut into other pieces.
namespace gallery {
namespace {

/// The largest of features that ranks share, and where it is.
struct Largest : Program {
  Largest() {
    up = register_module("up", torch::nn::Linear(5, 9));
    table = register_module("table", torch::nn::Embedding(9, 4));
  }
  Tensor loss(const Tensors& rows) override {
    const auto [values, indices] = up(rows[0]).max(-1);
    note("indices", indices);
    return values.mean() + table(indices).pow(2).mean();
  }
  torch::nn::Linear up{nullptr};
  torch::nn::Embedding table{nullptr};
};

/// Sums of values of one shape: of 8 features over 2 ranks the last 2 lie as 0 + 2, of 2 as 1 + 1.
struct OtherPieces : Program {
  OtherPieces() {
    eight = register_module("eight", torch::nn::Linear(5, 8));
    two = register_module("two", torch::nn::Linear(5, 2));
    six = register_module("six", torch::nn::Linear(5, 6));
    down = register_module("down", torch::nn::Linear(6, 3));
  }
  Tensor loss(const Tensors& rows) override {
    const Tensor all = torch::tanh(eight(rows[0]));
    const Tensor last = all.slice(1, 6, 8) * two(rows[0]);
    return down(all.slice(1, 0, 6) + six(rows[0])).pow(2).mean() + last.pow(2).mean();
  }
  torch::nn::Linear eight{nullptr}, two{nullptr}, six{nullptr}, down{nullptr};
};

/// Rows of 8 that are read as rows of 6: no piece stays one.
struct OtherRows : Program {
  OtherRows() {
    up = register_module("up", torch::nn::Linear(5, 8));
    down = register_module("down", torch::nn::Linear(6, 4));
  }
  Tensor loss(const Tensors& rows) override {
    return down(torch::tanh(up(rows[0])).view({-1, 6})).pow(2).mean();
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
};

}  // namespace

std::vector<Exhibit> cuts() {
  std::vector<Exhibit> all;
  const auto rows = [](int) { return Tensors{torch::randn({12, 5})}; };
  all.push_back({"G6", "pytorch#175776", made<Largest>, rows});
  all.push_back({"G20", "physicsnemo#1943, #1959, pytorch#172812", made<OtherPieces>, rows});
  all.push_back({"G25", "pytorch#179502", made<OtherRows>, rows});
  all.back().plan = R"({"up": "column"})";
  return all;
}

}  // namespace gallery
