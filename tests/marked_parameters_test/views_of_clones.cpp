// A forward copies a parameter and changes the copy through views of it (a pruned row, a zeroed
// diagonal): the copy follows its views as on one device.
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;

struct Write {
  const char* name;
  void (*run)(Tensor& w);
};

const std::vector<Write> kWrites = {
    {"a row is cleared", [](Tensor& w) { w[1].zero_(); }},
    {"a row of the last part is cleared", [](Tensor& w) { w[4].zero_(); }},
    {"a column is scaled", [](Tensor& w) { w.select(1, 2).mul_(2); }},
    {"rows over a border are cleared", [](Tensor& w) { w.slice(0, 1, 4).zero_(); }},
    {"columns over a border are filled", [](Tensor& w) { w.narrow(1, 1, 3).fill_(0.5); }},
    {"the diagonal is cleared", [](Tensor& w) { w.diagonal().zero_(); }},
    {"an element is set", [](Tensor& w) { w.view({-1})[7] = 2; }},
    {"a view of a view is written", [](Tensor& w) { w.t()[3].slice(0, 1, 3).mul_(-1); }},
    {"a row gets what the copy says", [](Tensor& w) { w[2].copy_(w[0] + 2 * w[1]); }},
    {"a view is read after a write to another",
     [](Tensor& w) {
       const Tensor row = w[2];
       w.select(1, 1).mul_(3);
       w[0].copy_(row);
     }},
    {"a view is read after a write to the copy",
     [](Tensor& w) {
       const Tensor column = w.select(1, 1);
       w.mul_(3);
       w.select(1, 0).copy_(column);
     }},
    {"the copy is written after its view",
     [](Tensor& w) {
       w[1].mul_(2);
       w.mul_(0.5);
       w[1].mul_(2);
     }},
    {"without a gradient recorded",
     [](Tensor& w) {
       const torch::NoGradGuard no_grad;
       w[1].zero_();
     }},
};

Tensor loss_of(const Tensor& parameter, const Write& write) {
  Tensor w = parameter.clone();
  write.run(w);
  return (torch::tanh(numbers({3, 4}, 1.0).matmul(w.t())) + w.sum()).pow(2).mean();
}

TEST(ViewsOfClones, AreWrittenAsOnOneDevice) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](const MPU& mpu) {
      const Tensor whole = numbers({5, 4});
      for (const Write& write : kWrites) {
        for (const int64_t dim : {0, 1}) {
          const std::string what = c10::str(write.name, ", dimension ", dim, " of ", ranks);
          const Tensor w = leaf(whole), p = marked(whole, mpu, dim);
          const Tensor actual = loss_of(p, write), expected = loss_of(w, write);
          expect_close(actual, expected, what);
          actual.backward();
          expected.backward();
          expect_close(p.grad(), w.grad(), what + ", gradient");
          expect_close(p.detach(), w.detach(), what + ", the parameter itself");
        }
      }
    });
  }
}

/// The parameter itself, and views of it, stay refused, on every rank.
TEST(ViewsOfClones, ViewsOfTheParameterStayRefused) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor p = marked(numbers({5, 4}), mpu, 0);
    for (const Tensor& view : {p[1], p.alias()[1], p.t()[1]}) {
      EXPECT_NE(error_of([&] { Tensor(view).zero_(); }).find("torch::NoGradGuard"),
                std::string::npos);
    }
  });
}

}  // namespace
}  // namespace oslo
