// Views in place (unsqueeze_, t_ and their like), and writes through what was detached.
#include <gmock/gmock.h>

#include "tests/support/cube.h"
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::AllOf;
using ::testing::HasSubstr;

// detach() and its like share the elements, and so the count of writes to them.
TEST(InPlace, AWriteThroughWhatWasDetachedIsSeen) {
  on_ranks(2, [](const MPU& mpu) {
    const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> views = {
        {"detach", [](const Tensor& t) { return t.detach(); }},
        {"alias", [](const Tensor& t) { return torch::alias(t.detach()); }},
        {"to a type", [](const Tensor& t) { return t.detach().to(torch::kDouble); }},
        {"to a device", [](const Tensor& t) { return t.detach().to(torch::kCPU); }},
        {"view", [](const Tensor& t) { return t.detach().view({24}); }},
    };
    for (const auto& [name, view] : views) {
      const auto error = [&](const Tensor& x) {
        const Tensor loss = test::Cube::apply(x).sum();
        view(x).mul_(2);
        return error_of([&] { loss.backward(); });
      };
      EXPECT_THAT(error(leaf(numbers({4, 6})) * 1), HasSubstr("modified by an inplace operation"));
      EXPECT_THAT(error(placed(leaf(numbers({4, 6})), mpu, 0) * 1),
                  HasSubstr("modified by an inplace operation"))
          << name;
    }
  });
}

using Reshape = std::function<void(Tensor)>;

/// Views in place, of every cut: values, writes, gradients.
void expect_same_views(const MPU& mpu, const char* name, const Reshape& reshape) {
  const std::vector<int64_t> sizes{5, 1, 7};
  for (const int64_t dim : {0, 1, 2}) {
    const std::string what = std::string(name) + ", cut on " + std::to_string(dim);
    const Tensor w = leaf(numbers(sizes)), own = leaf(w);
    const auto run = [&](Tensor x, std::vector<Tensor>& seen) {
      x = x * 2;
      const Tensor view = x.transpose(0, 2), saved = (x * 1).sin();
      reshape(x);
      seen.push_back(x.detach().clone());
      const Tensor other = torch::arange(x.numel(), torch::kDouble).view(x.sizes());
      Tensor result = (x * other).sum() + saved.sum();
      x.mul_(3);
      seen.push_back(view.detach().clone());
      seen.push_back(x.detach().clone());
      return result + (x.exp() + other).sum() + view.sum();
    };
    std::vector<Tensor> seen, expected;
    const Tensor loss = run(placed(own, mpu, dim), seen), reference = run(w, expected);
    for (size_t i = 0; i < seen.size(); ++i) {
      ASSERT_EQ(seen[i].sizes(), expected[i].sizes()) << what;
      expect_close(seen[i], expected[i], what + ", look " + std::to_string(i));
    }
    expect_close(loss, reference, what);
    loss.backward();
    reference.backward();
    expect_close(own.grad(), w.grad(), what + ", gradient");
  }
}

TEST(InPlace, ViewsInPlace) {
  on_ranks(3, [](const MPU& mpu) {
    const std::vector<std::pair<const char*, Reshape>> reshapes = {
        {"unsqueeze_", [](Tensor t) { t.unsqueeze_(1); }},
        {"unsqueeze_ at the end", [](Tensor t) { t.unsqueeze_(-1); }},
        {"squeeze_", [](Tensor t) { t.squeeze_(); }},
        {"squeeze_ a dimension", [](Tensor t) { t.squeeze_(1); }},
        {"squeeze_ a long one", [](Tensor t) { t.squeeze_(0); }},
        {"transpose_", [](Tensor t) { t.transpose_(0, 2); }},
        {"swapaxes_", [](Tensor t) { t.swapaxes_(1, 2); }},
        {"swapdims_", [](Tensor t) { t.swapdims_(0, 1); }},
        {"two", [](Tensor t) { t.squeeze_(1).t_(); }},
        {"there and back", [](Tensor t) { t.transpose_(0, 2).transpose_(0, 2); }},
    };
    for (const auto& [name, reshape] : reshapes) expect_same_views(mpu, name, reshape);
  });
}

TEST(InPlace, ViewsInPlaceOfViewsAndWatchedTensors) {
  on_ranks(3, [](const MPU& mpu) {
    for (const int64_t dim : {0, 1}) {
      const Tensor w = leaf(numbers({5, 7})), own = leaf(w);
      const auto run = [&](const Tensor& leaf, std::vector<Tensor>& seen) {
        const Tensor x = leaf * 2;
        Tensor row = x.select(0, 2);  // where rows are cut, a view that had to be gathered
        const Tensor before = x.t();
        Tensor watched = (x * 1).cos();
        watched.retain_grad();
        watched.unsqueeze_(0);
        Tensor part = x.slice(1, 2, 5);
        part.t_();
        part.mul_(1.5);
        seen = {x, before, part, watched};
        for (Tensor& tensor : seen) tensor = tensor.detach().clone();
        const Tensor own_function = test::Cube::apply(x);
        Tensor turned = own_function * 1, direct = test::Cube::apply(x);
        direct.t_();
        turned.t_();
        const Tensor loss = row.sum() + (watched * watched).sum() + (part.sin()).sum() +
                            (turned * direct).sum() + before.pow(3).sum();
        loss.backward();
        seen.push_back(watched.grad().flatten());
        return loss;
      };
      std::vector<Tensor> seen, expected;
      expect_close(run(placed(own, mpu, dim), seen), run(w, expected), "value");
      for (size_t i = 0; i < seen.size(); ++i) {
        ASSERT_EQ(seen[i].sizes(), expected[i].sizes()) << i;
        expect_close(seen[i], expected[i], "look " + std::to_string(i));
      }
      expect_close(own.grad(), w.grad(), "gradient");
    }
  });
}

TEST(InPlace, ViewsInPlaceThatCannotBe) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor p = marked(numbers({5, 3}), mpu);
    {
      const torch::NoGradGuard no_grad;
      EXPECT_THAT(error_of([&] { p.t_(); }),
                  AllOf(HasSubstr("parallel parameter w"), HasSubstr("t_")));
      EXPECT_THAT(error_of([&] { p.unsqueeze_(0); }), HasSubstr("parallel parameter w"));
    }
    const Tensor x = placed(numbers({5, 3}), mpu, 0) * 1;
    EXPECT_THAT(error_of([&] { x.transpose_(0, 4); }), HasSubstr("Dimension out of range"));
    EXPECT_EQ(x.sizes(), c10::IntArrayRef({5, 3}));
    const Tensor saved = placed(leaf(numbers({5, 3})), mpu, 0) * 1;
    const Tensor loss = test::Cube::apply(saved).sum(), y = saved.detach();
    saved.t_();
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"));
  });
}

}  // namespace
}  // namespace oslo
