// What LibTorch and its users may do with an activation that is cut over ranks, beside operators:
// gradients, hooks, functions of their own, printing, modes, threads.
#include <gmock/gmock.h>

#include <sstream>
#include <thread>

#include "tests/support/bf16.h"
#include "tests/support/cube.h"
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::HasSubstr;

TEST(PlacedTensor, IsAnActivationOfTheGlobalShape) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({7, 5})), x = placed(w, mpu, 0);
    EXPECT_EQ(x.sizes(), w.sizes());
    EXPECT_EQ(x.numel(), 35);
    EXPECT_TRUE(x.requires_grad());
    EXPECT_FALSE(x.is_leaf());
    EXPECT_TRUE(x.is_floating_point());
    EXPECT_EQ(x.dtype(), torch::kDouble);
    EXPECT_FALSE(placed(numbers({7, 5}), mpu, 0).requires_grad());
    EXPECT_TRUE(placed(numbers({7, 5}), mpu, 0).is_leaf());
    EXPECT_FALSE(x.detach().requires_grad());
    EXPECT_TRUE(is_placed(x.detach()));
    expect_close(x.detach(), w, "detach");
  });
}

TEST(PlacedTensor, BackwardTakesAGlobalOrAPlacedGradient) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({7, 5})), given = numbers({7, 5}, 2.0);
    w.pow(2).backward(given);
    for (int kind = 0; kind < 3; ++kind) {
      const Tensor own = leaf(numbers({7, 5}));
      const Tensor y = placed(own, mpu, 0).pow(2);
      y.backward(kind == 0 ? given : placed(given, mpu, kind - 1));
      expect_close(own.grad(), w.grad(), "gradient of kind " + std::to_string(kind));
    }
    const Tensor y = placed(leaf(numbers({7, 5})), mpu, 0).pow(2);
    EXPECT_NE(error_of([&] { y.backward(numbers({3, 5})); }), "");
    EXPECT_THAT(error_of([&] { y.backward(); }), HasSubstr("scalar"));
  });
}

TEST(PlacedTensor, HooksAndRetainedGradients) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({5, 3})), own = leaf(w);
    Tensor seen, expected;
    const auto run = [](const Tensor& x, Tensor& saw) {
      const Tensor y = x * 3;
      y.retain_grad();
      y.register_hook([&saw](const Tensor& g) {
        saw = g;
        return g * 2;
      });
      y.pow(2).sum().backward();
      return y.grad();
    };
    const Tensor kept = run(placed(own, mpu, 0), seen), reference = run(w, expected);
    EXPECT_EQ(seen.sizes(), w.sizes());
    expect_close(seen, expected, "what the hook saw");
    expect_close(kept, reference, "retained");
    expect_close(own.grad(), w.grad(), "gradient");
  });
}

TEST(PlacedTensor, AUsersOwnFunction) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({7, 5})), own = leaf(w);
    const auto run = [](const Tensor& x) { return (test::Cube::apply(x * 2).sin() * x).sum(); };
    const Tensor a = run(placed(own, mpu, 1)), b = run(w);
    expect_close(a, b, "value");
    a.backward();
    b.backward();
    expect_close(own.grad(), w.grad(), "gradient");
  });
}

/// Takes a parameter itself, and gives its gradient.
struct OwnLinear : torch::autograd::Function<OwnLinear> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x, Tensor weight) {
    context->save_for_backward({x, weight});
    return x.mm(weight.t());
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].mm(saved[1]), gradients[0].t().mm(saved[0])};
  }
};

TEST(PlacedTensor, AUsersOwnFunctionOfAParameter) {
  on_ranks(2, [](const MPU& mpu) {
    // With 2 rows a rank holds one, to which a gradient of both could be summed.
    for (const int64_t rows : {2, 5}) {
      for (const int dim : {0, 1}) {
        const Tensor w = leaf(numbers({rows, 3})), p = marked(w, mpu, dim), x = numbers({4, 3});
        const auto loss = [&](const Tensor& t) {
          return (OwnLinear::apply(x, t).pow(2) + x.matmul(t.t())).sum();
        };
        for (int pass = 0; pass < 2; ++pass) {  // the second one adds up
          loss(p).backward();
          loss(w).backward();
          expect_close(p.grad(), w.grad(), "gradient");
          EXPECT_EQ(p.grad().sizes(), p.sizes());
        }
        const Tensor got = torch::autograd::grad({loss(p)}, {p})[0];
        expect_close(got, torch::autograd::grad({loss(w)}, {w})[0], "grad()");
      }
    }
  });
}

TEST(PlacedTensor, GradientsWithRespectToActivations) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({5, 3})), own = leaf(w);
    const Tensor x = placed(own, mpu, 0);
    const Tensor a = x.pow(3).sum(), b = w.pow(3).sum();
    const Tensor got = torch::autograd::grad({a}, {x}, {}, true, /*create_graph=*/true)[0];
    const Tensor expected = torch::autograd::grad({b}, {w}, {}, true, /*create_graph=*/true)[0];
    EXPECT_EQ(local_tensor(got).sizes(), local_tensor(x).sizes());
    expect_close(got, expected, "an activation");
    expect_close(torch::autograd::grad({got.pow(2).sum()}, {x}, {}, true)[0],
                 torch::autograd::grad({expected.pow(2).sum()}, {w}, {}, true)[0],
                 "the gradient of that");
    // A leaf of its own, and an activation that keeps its gradient, have a place in the graph.
    const Tensor own_leaf = placed(numbers({5, 3}), mpu, 0).requires_grad_();
    EXPECT_TRUE(own_leaf.is_leaf());
    expect_close(torch::autograd::grad({own_leaf.pow(3).sum()}, {own_leaf})[0],
                 torch::autograd::grad({b}, {w}, {}, true)[0], "a placed leaf");
    own_leaf.pow(3).sum().backward();
    EXPECT_EQ(own_leaf.grad().sizes(), w.sizes());
    const Tensor first = torch::autograd::grad({a}, {own})[0];
    expect_close(first, torch::autograd::grad({b}, {w})[0], "the leaf behind");
  });
}

TEST(PlacedTensor, RawDataIsRefusedByName) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor x = placed(numbers({5, 3}), mpu, 0);
    for (const std::string& message :
         {error_of([&] { x.data_ptr(); }), error_of([&] { x.data_ptr<double>(); }),
          error_of([&] { x.const_data_ptr<double>(); }), error_of([&] { x.storage(); }),
          error_of([&] { x.accessor<double, 2>(); })}) {
      EXPECT_THAT(message, HasSubstr("oslo::full_tensor(t)"));
    }
    EXPECT_FALSE(x.has_storage());
    expect_close(x * 2, numbers({5, 3}) * 2, "still usable");
  });
}

TEST(PlacedTensor, OperatorsOnStorageAreRefusedByName) {
  on_ranks(2, [](const MPU& mpu) {
    Tensor x = placed(numbers({5, 3}), mpu, 0), plain = torch::zeros({5, 3}, torch::kDouble);
    const auto refused = [&](const char* name, const std::function<void()>& action) {
      EXPECT_THAT(error_of(action), HasSubstr(name));
    };
    refused("as_strided", [&] { x.as_strided({2, 2}, {1, 1}); });
    refused("set_", [&] { x.set_(plain); });
    refused("set_", [&] { plain.set_(x); });
    refused("resize_", [&] { x.resize_({2}); });
    refused("resize_as_", [&] { plain.resize_as_(x); });
    refused("set_data", [&] { x.set_data(plain); });
    expect_close(x, numbers({5, 3}), "unchanged");
  });
}

TEST(PlacedTensor, OutFormsWriteWhatTheOthersReturn) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = numbers({5, 3});
    Tensor x = placed(w, mpu, 0), plain = torch::zeros({5, 3}, torch::kDouble);
    torch::add_out(plain, x, x);
    expect_close(plain, w * 2, "an ordinary out");
    torch::add_out(x, plain, plain);
    expect_close(x, w * 4, "a placed out");
    Tensor product = torch::empty({0}, torch::kDouble), both = torch::empty({0}, torch::kDouble);
    torch::mm_out(product, x, plain.t());
    expect_close(product, (w * 4).mm((w * 2).t()), "one that takes the result's shape");
    torch::cat_out(both, {x, x});
    expect_close(both, torch::cat({w, w}) * 4, "of a list");
    Tensor small = placed(numbers({2, 3}), mpu, 0);
    EXPECT_THAT(error_of([&] { torch::add_out(small, x, x); }), HasSubstr("keeps its sizes"));
    const Tensor trained = leaf(w);
    EXPECT_THAT(error_of([&] { torch::add_out(x, placed(trained, mpu, 0), x); }),
                HasSubstr("which out= forms do not record"));
  });
}

TEST(PlacedTensor, ValuesAreReadByAllRanksTogether) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor w = numbers({7, 5}), x = placed(w, mpu, 0);
    EXPECT_DOUBLE_EQ(x.sum().item<double>(), w.sum().item<double>());
    EXPECT_DOUBLE_EQ(x.select(0, 6).select(0, 2).item<double>(), w[6][2].item<double>());
    EXPECT_DOUBLE_EQ(x[5][1].item<double>(), w[5][1].item<double>());
    EXPECT_TRUE(torch::equal(x, w));
    EXPECT_TRUE(torch::allclose(x, w));
    EXPECT_FALSE(torch::equal(x, w + 1));
    std::ostringstream expected, whole, direct;
    expected << w;
    whole << full_tensor(x);
    EXPECT_EQ(whole.str(), expected.str());
    EXPECT_THAT(error_of([&] { direct << x; }), HasSubstr("full_tensor"));
  });
}

TEST(PlacedTensor, ContiguityMirrorsOneDevice) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = numbers({4, 6, 5}), x = placed(w, mpu, 1);
    const auto same = [](const Tensor& a, const Tensor& b, const char* what) {
      EXPECT_EQ(a.is_contiguous(), b.is_contiguous()) << what;
      expect_close(a, b, what);
    };
    same(x, w, "as made");
    same(x.transpose(0, 1), w.transpose(0, 1), "transposed");
    same(x.transpose(0, 1).contiguous(), w.transpose(0, 1).contiguous(), "contiguous");
    same(x.transpose(0, 1).contiguous().view({6, 20}), w.transpose(0, 1).contiguous().view({6, 20}),
         "viewed");
    same(x.permute({2, 0, 1}).clone(), w.permute({2, 0, 1}).clone(), "clone keeps strides");
    same(x.slice(2, 1, 3), w.slice(2, 1, 3), "slice");
    same(x.select(0, 1), w.select(0, 1), "select");
    same(x.sum(1), w.sum(1), "sum");
  });
}

TEST(PlacedTensor, InferenceModeAndNoGrad) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({5, 3})), p = marked(w, mpu), x = numbers({4, 3}, 1.0);
    const auto model = [&](const Tensor& t) {
      Tensor y = x.matmul(t.t()).view({2, 2, 5}) + t.sum(1);
      y.mul_(2);
      y.slice(0, 1, 2).add_(1);
      return torch::softmax(y, -1);
    };
    const Tensor expected = model(w);
    {
      const c10::InferenceMode guard;
      const Tensor y = model(p);
      EXPECT_TRUE(y.is_inference());
      EXPECT_FALSE(y.requires_grad());
      expect_close(y, expected, "inference mode");
      expect_close(p.clone(), w, "clone in inference mode");
    }
    torch::NoGradGuard no_grad;
    EXPECT_FALSE(model(p).requires_grad());
    expect_close(model(p), expected, "no_grad");
  });
}

TEST(PlacedTensor, Autocast) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor up = leaf(numbers({6, 4}).to(torch::kFloat)),
                 down = leaf(numbers({4, 6}, 2.0).to(torch::kFloat));
    const Tensor up_cut = marked(up, mpu, 0), down_cut = marked(down, mpu, 1);
    const Tensor up_exact = leaf(up), down_exact = leaf(down);
    const Tensor x = numbers({3, 4}, 1.0).to(torch::kFloat);
    const auto forward = [&](const Tensor& a, const Tensor& b) {
      return torch::linear(torch::gelu(torch::linear(x, a)), b);
    };
    const Tensor exact = forward(up_exact, down_exact);
    Tensor one, many;
    {
      const test::Autocast autocast;
      one = forward(up, down);
      many = forward(up_cut, down_cut);
    }
    EXPECT_EQ(many.scalar_type(), torch::kBFloat16);
    for (const Tensor& y : {exact, one, many}) torch::mse_loss(y.to(torch::kFloat), x).backward();
    test::expect_rounded_alike(many, one, exact, 2, "output");
    test::expect_rounded_alike(up_cut.grad(), up.grad(), up_exact.grad(), 2, "up");
    test::expect_rounded_alike(down_cut.grad(), down.grad(), down_exact.grad(), 2, "down");
    EXPECT_EQ(up_cut.grad().scalar_type(), torch::kFloat);
  });
}

TEST(PlacedTensor, AutocastOfOperatorsThatRulesTakeApart) {
  on_ranks(2, [](const MPU& mpu) {
    const auto single = [](const Tensor& t) { return t.to(torch::kFloat); };
    const Tensor w = single(numbers({6, 4})), x = single(numbers({3, 4}, 1.0));
    const Tensor bias = single(numbers({6})), image = single(numbers({2, 4, 5}));
    const Tensor kernel = single(numbers({6, 4, 3}, 3.0));
    const auto run = [&](const std::function<Tensor(const Tensor&)>& cut) {
      return std::vector<Tensor>{
          torch::addmm(cut(bias), x, cut(w).t()), torch::linear(x, cut(w), cut(bias)),
          torch::conv1d(image, cut(kernel), cut(bias)),
          torch::mse_loss(torch::linear(x, cut(w)), x.sum(1, true), at::Reduction::None)};
    };
    const auto whole = [](const Tensor& t) { return t; };
    const auto exact = run(whole);
    const test::Autocast autocast;
    const auto actual = run([&](const Tensor& t) { return marked(t, mpu, 0); });
    const auto expected = run(whole);
    for (size_t i = 0; i < expected.size(); ++i) {
      test::expect_rounded_alike(actual[i], expected[i], exact[i], 2,
                                 "operator " + std::to_string(i));
    }
  });
}

TEST(PlacedTensor, TwoThreadsOfARankOneAfterTheOther) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({5, 3})), p = marked(w, mpu);
    Tensor y;
    std::thread([&] { y = (p * 2).sin(); }).join();
    std::thread([&] { y.pow(2).sum().backward(); }).join();
    (w * 2).sin().pow(2).sum().backward();
    expect_close(p.grad(), w.grad(), "gradient");
  });
}

TEST(PlacedTensor, QueryKeyAndValueReduceTheirInputOnce) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor wx = leaf(numbers({4, 3})), x = leaf(wx);
    std::vector<Tensor> whole, cut;
    for (int i = 0; i < 3; ++i) {
      whole.push_back(leaf(numbers({6, 3}, i)));
      cut.push_back(marked(whole.back(), mpu));
    }
    const auto attend = [](const Tensor& input, const std::vector<Tensor>& w) {
      const Tensor h = input * 2;
      return (torch::linear(h, w[0]) * torch::linear(h, w[1]) + torch::linear(h, w[2])).sum();
    };
    const Tensor expected = attend(wx, whole), actual = attend(x, cut);
    const int64_t before = all_reduces(mpu);
    actual.backward();
    EXPECT_EQ(all_reduces(mpu) - before, 1);
    expected.backward();
    expect_close(x.grad(), wx.grad(), "input");
    for (int i = 0; i < 3; ++i) expect_close(cut[i].grad(), whole[i].grad(), "projection");
  });
}

}  // namespace
}  // namespace oslo
