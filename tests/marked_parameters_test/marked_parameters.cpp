// A parameter cut over ranks is a placed value to whoever computes with it, and an ordinary local
// tensor to optimizers and initializers.
#include <ATen/SequenceNumber.h>
#include <gmock/gmock.h>

#include <limits>

#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::HasSubstr;

TEST(MarkedParameters, AreTheWholeWhereverAModelComputesWithThem) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({7, 5})), p = marked(w, mpu);
    const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> uses = {
        {"pow sum", [](const Tensor& t) { return t.pow(2).sum(); }},
        {"norm", [](const Tensor& t) { return t.norm(); }},
        {"mean", [](const Tensor& t) { return t.mean(); }},
        {"max", [](const Tensor& t) { return t.max(); }},
        {"twice", [](const Tensor& t) { return t * 2; }},
        {"with a whole tensor",
         [](const Tensor& t) {
           return t + numbers({7, 5}, 2.0);
         }},
        {"transposed", [](const Tensor& t) { return t.t(); }},
        {"row sums", [](const Tensor& t) { return t.sum(1); }},
        {"column sums", [](const Tensor& t) { return t.sum(0); }},
        {"gram", [](const Tensor& t) { return t.t().matmul(t); }},
        {"softmax of rows", [](const Tensor& t) { return torch::softmax(t, 0); }},
        {"slice", [](const Tensor& t) { return t.slice(0, 1, 6); }},
        {"view", [](const Tensor& t) { return t.view({-1}); }},
    };
    for (const auto& [name, use] : uses) {
      const Tensor actual = use(p), expected = use(w);
      EXPECT_EQ(actual.sizes(), expected.sizes()) << name;
      expect_close(actual, expected, name);
      actual.pow(2).sum().backward();
      expected.pow(2).sum().backward();
      expect_close(p.grad(), w.grad(), std::string(name) + ", gradient");
      EXPECT_TRUE(is_placed(p.grad())) << name;
      torch::NoGradGuard no_grad;
      expect_close(use(p), use(w), std::string(name) + " under no_grad");
    }
  });
}

/// What a call reads of a parameter is a node in the graph: one, and the operator's own. Not more
/// where the rule looks at its operand twice.
TEST(MarkedParameters, AreReadOnceACall) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor p = marked(leaf(numbers({6, 5})), mpu);
    const auto nodes = [](const auto& call) {
      const uint64_t before = at::sequence_number::peek();
      const Tensor kept = call();
      return at::sequence_number::peek() - before;
    };
    EXPECT_EQ(nodes([&] { return p.t(); }), 2u);
    EXPECT_EQ(nodes([&] { return torch::softmax(p, 1); }), 2u);
    EXPECT_EQ(nodes([&] { return p.cumsum(1); }), 2u);
    EXPECT_EQ(nodes([&] { return p.flip({1}); }), 2u);
    EXPECT_EQ(nodes([&] { return p.mul(p); }), 3u);
  });
}

TEST(MarkedParameters, GradientsAreMarkedToo) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({5, 3})), p = marked(w, mpu), x = numbers({4, 3}, 1.0);
    const auto loss = [&](const Tensor& t) { return x.matmul(t.t()).pow(3).sum(); };
    const Tensor a = loss(p), b = loss(w);
    a.backward({}, /*retain_graph=*/true);
    b.backward({}, true);
    expect_close(p.grad(), w.grad(), "one backward");
    const Tensor first = p.grad();
    a.backward();
    b.backward();
    expect_close(p.grad(), w.grad(), "the same graph again");
    loss(p).backward();
    loss(w).backward();
    expect_close(p.grad(), w.grad(), "accumulated");
    EXPECT_TRUE(p.grad().is_same(first));
    expect_close(p.grad().norm(), w.grad().norm(), "norm of the gradient");
    EXPECT_EQ(p.grad().sizes(), p.sizes());
  });
}

TEST(MarkedParameters, AutogradGradHandsOutAMarkedGradient) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({5, 3})), p = marked(w, mpu);
    // Two uses, so that two gradients meet before they are handed out.
    const auto loss = [](const Tensor& t) { return t.pow(3).sum() + (t * numbers({5, 3})).sum(); };
    const Tensor got = torch::autograd::grad({loss(p)}, {p})[0];
    const Tensor expected = torch::autograd::grad({loss(w)}, {w})[0];
    EXPECT_TRUE(is_placed(got));
    expect_close(got, expected, "gradient");
    expect_close(got.norm(), expected.norm(), "norm of the gradient");
    EXPECT_FALSE(p.grad().defined());
    // And again on a kept graph, where the gradient is asked for twice.
    const Tensor kept = loss(p);
    for (int i = 0; i < 2; ++i) {
      const auto again = torch::autograd::grad({kept}, {p}, {}, /*retain_graph=*/true);
      expect_close(again[0], expected, "kept graph");
    }
  });
}

TEST(MarkedParameters, SecondDerivatives) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({5, 3})), v = leaf(numbers({3, 5}, 4.0));
    const Tensor p = marked(w, mpu, 0), q = marked(v, mpu, 1);
    const auto penalty = [](const Tensor& a, const Tensor& b) {
      const Tensor x = leaf(numbers({4, 3}, 1.0));
      const Tensor y = x.matmul(a.t()).sin().matmul(b.t()).pow(2).sum();
      return torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0].pow(2).sum();
    };
    const Tensor actual = penalty(p, q), expected = penalty(w, v);
    expect_close(actual, expected, "penalty");
    actual.backward();
    expected.backward();
    expect_close(p.grad(), w.grad(), "column weight");
    expect_close(q.grad(), v.grad(), "row weight");
  });
}

TEST(MarkedParameters, ClipGradNormEqualsOneDevice) {
  on_ranks(3, [](const MPU& mpu) {
    const std::vector<Tensor> whole = {leaf(numbers({7, 5})), leaf(numbers({4}, 2.0)),
                                       leaf(numbers({3, 2}, 4.0))};
    const std::vector<Tensor> cut = {marked(whole[0], mpu, 1), marked(whole[1], mpu),
                                     leaf(whole[2])};
    for (const double kind : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
      for (const auto& parameters : {whole, cut}) {
        for (const Tensor& p : parameters) {
          p.mutable_grad() = Tensor();
          p.pow(3).sum().backward();
        }
      }
      EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(cut, 0.5, kind),
                  torch::nn::utils::clip_grad_norm_(whole, 0.5, kind), 1e-12);
      for (size_t i = 0; i < whole.size(); ++i) {
        expect_close(cut[i].grad(), whole[i].grad(), "clipped gradient");
      }
    }
  });
}

template <typename Optimizer, typename Options>
void expect_same_steps(const MPU& mpu, const Options& options, bool set_to_none, const char* name) {
  const std::vector<Tensor> whole = {leaf(numbers({7, 5})), leaf(numbers({4}, 2.0))};
  const std::vector<Tensor> cut = {leaf(whole[0]), leaf(whole[1])};
  Optimizer one(whole, options), many(cut, options);  // made before the parameters are cut
  mark(cut[0], mpu, 1);
  mark(cut[1], mpu, 0);
  for (int step = 0; step < 3; ++step) {
    one.zero_grad(set_to_none);
    many.zero_grad(set_to_none);
    for (size_t i = 0; i < whole.size(); ++i) {
      (whole[i].pow(3).sum() * (step + 1)).backward();
      (cut[i].pow(3).sum() * (step + 1)).backward();
    }
    one.step();
    many.step();
    for (size_t i = 0; i < whole.size(); ++i) expect_close(cut[i], whole[i], name);
  }
}

TEST(MarkedParameters, OptimizersStepAsOnOneDevice) {
  on_ranks(2, [](const MPU& mpu) {
    for (const bool to_none : {true, false}) {
      using namespace torch::optim;
      expect_same_steps<SGD>(mpu, SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(true),
                             to_none, "SGD");
      expect_same_steps<Adam>(mpu, AdamOptions(0.1).weight_decay(0.01), to_none, "Adam");
      expect_same_steps<AdamW>(mpu, AdamWOptions(0.1).amsgrad(true), to_none, "AdamW");
      expect_same_steps<RMSprop>(mpu, RMSpropOptions(0.1).momentum(0.5).centered(true), to_none,
                                 "RMSprop");
    }
  });
}

TEST(MarkedParameters, AdagradMadeBeforeOrAfterTheCut) {
  on_ranks(2, [](const MPU& mpu) {
    using namespace torch::optim;
    // Adagrad makes its state in its constructor; made before the cut, it stays whole, and right.
    for (const bool before : {true, false}) {
      const Tensor w = leaf(numbers({5, 3})), p = leaf(w);
      if (!before) mark(p, mpu, 0);
      Adagrad one({w}, AdagradOptions(0.1)), many({p}, AdagradOptions(0.1));
      if (before) mark(p, mpu, 0);
      for (int step = 0; step < 3; ++step) {
        one.zero_grad();
        many.zero_grad();
        w.pow(3).sum().backward();
        p.pow(3).sum().backward();
        one.step();
        many.step();
        expect_close(p, w, before ? "Adagrad before" : "Adagrad after");
      }
    }
  });
}

TEST(MarkedParameters, OptimizerStatesAreMarked) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor p = marked(numbers({5, 3}), mpu);
    torch::optim::AdamW adam({p}, torch::optim::AdamWOptions(0.1));
    p.pow(2).sum().backward();
    adam.step();
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(
        *adam.state().at(p.unsafeGetTensorImpl()));
    EXPECT_TRUE(is_placed(state.exp_avg()));
    EXPECT_EQ(full_tensor(state.exp_avg_sq()).sizes(), at::IntArrayRef({5, 3}));
  });
}

TEST(MarkedParameters, TakeTheirPartOfAWholeTensor) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor p = marked(torch::zeros({7, 5}, torch::kDouble), mpu), whole = numbers({7, 5});
    torch::NoGradGuard no_grad;
    p.copy_(whole);
    expect_close(p, whole, "whole source");
    p.copy_(placed(whole * 2, mpu, 1));
    expect_close(p, whole * 2, "placed otherwise");
    p.copy_(local_tensor(marked(whole * 3, mpu)));
    expect_close(p, whole * 3, "this rank's part");
    p.copy_(numbers({5}));
    expect_close(p, numbers({5}).expand({7, 5}), "a row");
    p.add_(whole);
    expect_close(p, numbers({5}) + whole, "add_ of a whole tensor");
    Tensor plain = torch::zeros({7, 5}, torch::kDouble);
    plain.copy_(p);
    expect_close(plain, numbers({5}) + whole, "into a plain tensor");
  });
}

TEST(MarkedParameters, APartThatIsEverythingIsToldFromAWhole) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor p = marked(numbers({1, 5}), mpu);  // rank 0 holds the row, the others nothing
    torch::NoGradGuard no_grad;
    Tensor whole = torch::zeros({1, 5}, torch::kDouble), part = torch::zeros_like(local_tensor(p));
    whole.copy_(p);
    expect_close(whole, numbers({1, 5}), "the whole");
    part.add_(p);
    EXPECT_TRUE(torch::equal(part, local_tensor(p)));
    EXPECT_EQ(mpu.tensor_group()->ledger().total("all_gather").calls, 3);  // of p, and two answers
    whole.addcmul_(p, whole.clone());
    expect_close(whole, numbers({1, 5}) + numbers({1, 5}).square(), "of the whole");
    for (const auto& mixed : std::vector<std::function<void()>>{[&] { whole.addcmul_(p, part); },
                                                                [&] { part.addcmul_(p, whole); }}) {
      EXPECT_THAT(error_of(mixed), HasSubstr("have the sizes of a rank's part, others do not"));
    }
    whole.copy_(full_tensor(p));
    p.copy_(whole * 2);
    expect_close(p, numbers({1, 5}) * 2, "back");
  });
}

TEST(MarkedParameters, ModuleToKeepsMarks) {
  on_ranks(2, [](const MPU& mpu) {
    torch::nn::Linear linear(3, 5);
    {
      torch::NoGradGuard no_grad;
      linear->weight.copy_(numbers({5, 3}));
      linear->bias.copy_(numbers({5}, 1.0));
    }
    const Tensor before = linear->weight;
    const Tensor expected = linear->weight.detach().clone();
    mark(linear->weight, mpu, 0);
    mark(linear->bias, mpu, 0);
    for (const auto dtype : {torch::kDouble, torch::kBFloat16, torch::kFloat}) {
      linear->to(dtype);
      EXPECT_TRUE(linear->weight.is_same(before));
      EXPECT_TRUE(is_placed(linear->weight)) << dtype;
      EXPECT_EQ(linear->weight.scalar_type(), dtype);
      EXPECT_TRUE(linear->weight.is_leaf() && linear->weight.requires_grad());
    }
    linear->weight.set_data(linear->weight.data());
    EXPECT_TRUE(is_placed(linear->weight));
    expect_close(linear->weight, expected, "after three casts", 1e-2);
    linear->weight.sum().backward();
    linear->to(torch::kDouble);
    EXPECT_TRUE(is_placed(linear->weight.grad()));
    linear->zero_grad();
  });
}

TEST(MarkedParameters, CopiesKeepTheMarkAndLosingItIsRefused) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({5, 3})), p = marked(w, mpu);
    for (const Tensor& copy : {p.clone(), p.detach(), p.data(), p.to(torch::kFloat), p.contiguous(),
                               torch::zeros_like(p)}) {
      EXPECT_TRUE(is_placed(copy));
      EXPECT_EQ(full_tensor(copy).sizes(), w.sizes());
    }
    p.clone().pow(3).sum().backward();
    w.clone().pow(3).sum().backward();
    expect_close(p.grad(), w.grad(), "through clone()");
    const auto lost = error_of([&] { p.set_data(numbers({5, 3})); });
    EXPECT_THAT(lost, HasSubstr("set_data"));
    EXPECT_THAT(lost, HasSubstr("copy_"));
    EXPECT_TRUE(is_placed(p));
    const Tensor resized = marked(w, mpu);
    resized.unsafeGetTensorImpl()->set_sizes_contiguous({1, 3});
    EXPECT_THAT(error_of([&] { resized + 1; }), HasSubstr("after initialize"));
  });
}

TEST(MarkedParameters, BackwardDoesNotReenterTheRules) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor p = marked(numbers({5, 3}), mpu), x = leaf(numbers({4, 3}, 1.0));
    const Tensor y = x.matmul(p.t()).view({2, 2, 5}).pow(2).sum();
    mpu.tensor_mesh()->gathers().clear();
    const Traffic before = mpu.tensor_group()->ledger().total();
    y.backward();
    // The copy of x to the ranks is all that backward moves.
    EXPECT_EQ((mpu.tensor_group()->ledger().total() - before).calls, 1);
    EXPECT_EQ(mpu.tensor_mesh()->gathers().calls(), 0);
  });
}

TEST(MarkedParameters, AChangeBetweenForwardAndBackwardIsSeen) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor p = marked(numbers({5, 3}), mpu), x = leaf(numbers({4, 3}, 1.0));
    const Tensor loss = x.matmul(p.t()).sum();
    {
      torch::NoGradGuard no_grad;
      p.mul_(2);
    }
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"));
  });
}

TEST(MarkedParameters, InPlaceChangesInGradModeAreRefused) {
  on_ranks(2, [](const MPU& mpu) {
    Tensor p = marked(numbers({5, 3}), mpu);
    EXPECT_THAT(error_of([&] { p.mul_(2); }), HasSubstr("in-place operation"));
    EXPECT_THAT(error_of([&] { p.zero_(); }), HasSubstr("in-place operation"));
    EXPECT_THAT(error_of([&] { p.add_(leaf(numbers({5, 3}))); }), HasSubstr("NoGradGuard"));
    EXPECT_THAT(error_of([&] { p.copy_(numbers({5, 3})); }), HasSubstr("NoGradGuard"));
    expect_close(p, numbers({5, 3}), "unchanged");
  });
}

}  // namespace
}  // namespace oslo
