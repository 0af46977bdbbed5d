// A parameter cut over ranks is a placed value to whoever computes with it, and an ordinary local
// tensor to optimizers and initializers.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include <limits>

#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::AllOf;
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

/// A mark on parts of 2+2+1, 1+1+0 or 5+0+0 rows.
Tensor marked_by_units(const Tensor& whole, const MPU& mpu, int64_t unit) {
  Tensor parameter = leaf(whole);
  const LayoutPtr layout = std::make_shared<Layout>(
      make_layout(mpu.tensor_mesh(), {Placement::shard(0, 1, unit)}, whole.sizes()));
  mark_parameter(parameter, layout, "w");
  return parameter;
}

// A definition reads the sizes of tensors in lists, too: F::mse_loss broadcasts by one.
TEST(MarkedParameters, LossesOfAParameterAreThoseOfTheWhole) {
  on_ranks(3, [](const MPU& mpu) {
    namespace F = torch::nn::functional;
    for (const auto& [rows, unit] :
         std::vector<std::pair<int64_t, int64_t>>{{5, 1}, {2, 1}, {5, 5}}) {
      const Tensor whole = numbers({rows, 5}), target = numbers({rows, 5}, 2.0);
      const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> losses = {
          {"mse_loss", [&](const Tensor& t) { return F::mse_loss(t, target); }},
          {"mse_loss of it", [&](const Tensor& t) { return F::mse_loss(target, t); }},
          {"l1_loss", [&](const Tensor& t) { return F::l1_loss(t, target); }},
          {"smooth_l1_loss", [&](const Tensor& t) { return F::smooth_l1_loss(t, target); }},
          {"column_stack",
           [&](const Tensor& t) {
             return torch::column_stack({t, target});
           }},
          {"multi_dot",
           [&](const Tensor& t) {
             return torch::linalg_multi_dot({t, t.t(), t});
           }},
          {"meshgrid",
           [&](const Tensor& t) {
             return torch::meshgrid({t.select(1, 0), t.select(1, 1)}, "ij")[0];
           }},
      };
      for (const auto& [name, loss] : losses) {
        const Tensor w = leaf(whole), p = marked_by_units(whole, mpu, unit);
        const Tensor actual = loss(p), expected = loss(w);
        ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
        expect_close(actual, expected, name);
        actual.pow(2).sum().backward();
        expected.pow(2).sum().backward();
        expect_close(p.grad(), w.grad(), std::string(name) + ", gradient");
      }
    }
  });
}

// An optimizer that steps lists at once, as Python's do; a whole bias among parts.
TEST(MarkedParameters, ListsAreSteppedAsOneByOne) {
  on_ranks(3, [](const MPU& mpu) {
    const auto step = [](const Tensor& weight, const Tensor& bias) {
      const std::vector<Tensor> all{weight, bias}, gradients{weight.grad(), bias.grad()};
      const std::vector<Tensor> mean{torch::zeros_like(weight), torch::zeros_like(bias)};
      const std::vector<Tensor> square{torch::zeros_like(weight), torch::zeros_like(bias)};
      const torch::NoGradGuard no_grad;
      torch::_foreach_mul_(all, 0.99);
      torch::_foreach_lerp_(mean, gradients, 0.1);
      torch::_foreach_mul_(square, 0.9);
      torch::_foreach_addcmul_(square, gradients, gradients, 0.1);
      std::vector<Tensor> divisor = torch::_foreach_sqrt(square);
      torch::_foreach_add_(divisor, 1e-3);
      torch::_foreach_addcdiv_(all, mean, divisor, -0.5);
      torch::_foreach_copy_(mean, gradients);
      const std::vector<Tensor> norms = torch::_foreach_norm(all, 2);
      return torch::stack({full_tensor(norms[0]), full_tensor(norms[1])});
    };
    const Tensor x = numbers({4, 3}, 1.0);
    const Tensor w = leaf(numbers({5, 3})), b = leaf(numbers({5}, 0.5));
    const Tensor p = marked(numbers({5, 3}), mpu), c = leaf(numbers({5}, 0.5));
    torch::nn::functional::linear(x, w, b).pow(2).sum().backward();
    torch::nn::functional::linear(x, p, c).pow(2).sum().backward();
    const auto before = mpu.tensor_group()->ledger().total().calls;
    const Tensor norms = step(p, c), expected = step(w, b);
    expect_close(norms, expected, "norms");
    EXPECT_EQ(mpu.tensor_group()->ledger().total().calls - before, 1) << "the norm of the weight";
    expect_close(p, w, "the weight");
    expect_close(c, b, "the bias");
  });
}

// A gradient scaler: what is not finite in one rank's part stops the step on all ranks.
TEST(MarkedParameters, WhatOneRankFindsNotFiniteAllHaveFound) {
  on_ranks(3, [](const MPU& mpu) {
    for (const int64_t row : {-1, 0, 3, 4}) {
      Tensor whole = numbers({5, 3}).to(torch::kFloat), other = numbers({5}).to(torch::kFloat);
      if (row >= 0) whole[row][1] = std::numeric_limits<float>::infinity();
      const Tensor p = marked(whole, mpu), cut = placed(other, mpu, 0);
      const Tensor plain = other.clone(), expected = whole.clone();
      p.requires_grad_(false);
      const Tensor factor = torch::full({1}, 0.25);
      Tensor found = torch::zeros({1}), expected_found = torch::zeros({1});
      torch::_amp_foreach_non_finite_check_and_unscale_({p, cut, plain}, found, factor);
      torch::_amp_foreach_non_finite_check_and_unscale_({expected}, expected_found, factor);
      EXPECT_EQ(found.item<float>(), row >= 0 ? 1 : 0);
      EXPECT_EQ(found.item<float>(), expected_found.item<float>());
      expect_close(p, expected, "the parameter's");
      expect_close(cut, other * 0.25, "a cut one");
      expect_close(plain, other * 0.25, "a whole one");
    }
  });
}

// It slices a flat step by the parameters' numel(), which is that of the parts.
TEST(MarkedParameters, LbfgsIsRefusedByName) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor p = marked(numbers({5, 3}), mpu), bias = leaf(numbers({5}, 0.5));
    const Tensor x = numbers({4, 3}, 1.0);
    torch::optim::LBFGS optimizer(std::vector<Tensor>{bias, p});
    const std::string error = error_of([&] {
      optimizer.step([&] {
        optimizer.zero_grad();
        Tensor loss = torch::nn::functional::linear(x, p, bias).pow(2).sum();
        loss.backward();
        return full_tensor(loss);
      });
    });
    EXPECT_THAT(error, HasSubstr("torch::optim::LBFGS"));
    EXPECT_THAT(error, HasSubstr("[5, 3]"));
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

TEST(MarkedParameters, InitializersDrawWhatOneDeviceWould) {
  on_ranks(2, [](const MPU& mpu) {
    const std::vector<std::pair<const char*, std::function<void(Tensor)>>> initializers = {
        {"normal_", [](Tensor t) { torch::nn::init::normal_(t, 1.0, 2.0); }},
        {"uniform_", [](Tensor t) { torch::nn::init::uniform_(t, -1, 3); }},
        {"trunc",
         [](Tensor t) {
           torch::NoGradGuard no_grad;
           t.bernoulli_(0.4);
         }},
        {"constant_", [](Tensor t) { torch::nn::init::constant_(t, 0.25); }},
        {"zeros_", [](Tensor t) { torch::nn::init::zeros_(t); }},
        {"ones_", [](Tensor t) { torch::nn::init::ones_(t); }},
    };
    for (const auto& [name, initialize] : initializers) {
      const Tensor w = leaf(numbers({9, 5})), p = marked(w, mpu, 1);
      seeded([&] {
        initialize(w);
        return 0;
      });
      seeded([&] {
        initialize(p);
        return 0;
      });
      expect_close(p, w, name);
    }
    // LibTorch computes fans from the sizes of what it is given: the local ones of a parameter.
    const Tensor p = marked(numbers({9, 5}), mpu, 1);
    EXPECT_EQ(std::get<0>(torch::nn::init::_calculate_fan_in_and_fan_out(p)), p.size(1));
  });
}

/// They compute from the sizes of what they are given, which are those of a part.
TEST(MarkedParameters, InitializersThatReadSizesAreRefused) {
  namespace init = torch::nn::init;
  struct Refused {
    const char* name;
    std::function<void(Tensor)> initialize;
    std::vector<int64_t> sizes;
  };
  const std::vector<Refused> refused = {
      {"xavier_uniform_", [](Tensor t) { init::xavier_uniform_(t); }, {9, 5}},
      {"xavier_normal_", [](Tensor t) { init::xavier_normal_(t, 2); }, {9, 5}},
      {"kaiming_uniform_", [](Tensor t) { init::kaiming_uniform_(t, 1); }, {9, 5}},
      {"kaiming_normal_", [](Tensor t) { init::kaiming_normal_(t); }, {9, 5}},
      {"kaiming_normal_", [](Tensor t) { init::kaiming_normal_(t); }, {9, 5, 3}},
      {"orthogonal_", [](Tensor t) { init::orthogonal_(t); }, {9, 5}},
      {"orthogonal_", [](Tensor t) { init::orthogonal_(t); }, {3, 1}},  // all on one rank
      {"sparse_", [](Tensor t) { init::sparse_(t, 0.5); }, {9, 5}},
      {"eye_", [](Tensor t) { init::eye_(t); }, {9, 5}},
      {"dirac_", [](Tensor t) { init::dirac_(t); }, {9, 5, 3}},
  };
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [&](const MPU& mpu) {
      for (const Refused& each : refused) {
        for (const int64_t dim : {0, 1}) {
          const Tensor p = marked(numbers(each.sizes), mpu, dim);
          const int64_t before = mpu.tensor_group()->ledger().total("all_reduce").calls;
          const std::string error = error_of([&] { each.initialize(p); });
          EXPECT_THAT(error, AllOf(HasSubstr(each.name), HasSubstr("parallel parameter w"),
                                   HasSubstr("copy_")))
              << each.name << " " << dim;
          EXPECT_EQ(mpu.tensor_group()->ledger().total("all_reduce").calls, before);
          torch::NoGradGuard no_grad;
          Tensor whole = numbers(each.sizes, 5), expected = numbers(each.sizes, 5);
          seeded([&] { return each.initialize(whole), 0; });
          seeded([&] { return each.initialize(expected), 0; });
          p.copy_(whole);
          expect_close(p, expected, each.name);
        }
      }
      // By hand, and through a placed tensor, they draw what one device draws.
      torch::NoGradGuard no_grad;
      const Tensor w = numbers({9, 5}), p = marked(w, mpu, 1), q = placed(w, mpu, 1);
      const auto same = [&](const char* name, const std::function<void(Tensor)>& initialize,
                            const Tensor& cut) {
        const Tensor whole = w.clone();
        seeded([&] { return initialize(whole), 0; });
        seeded([&] { return initialize(cut), 0; });
        EXPECT_TRUE(torch::equal(full_tensor(cut), whole)) << name;
      };
      same(
          "uniform_", [](Tensor t) { t.uniform_(-0.1, 0.1); }, p);
      same(
          "normal_", [](Tensor t) { t.normal_(0, 0.02); }, p);
      same(
          "init::normal_", [](Tensor t) { init::normal_(t, 0, 0.02); }, p);
      same(
          "truncated", [](Tensor t) { t.normal_(0, 1).fmod_(2).mul_(0.02).clamp_(-1, 1); }, p);
      same(
          "placed, kaiming_uniform_", [](Tensor t) { init::kaiming_uniform_(t, 1); }, q);
      same(
          "placed, xavier_normal_", [](Tensor t) { init::xavier_normal_(t); }, q);
    });
  }
}

/// The layers' own resets: right where they compute from what is whole, refused elsewhere.
TEST(MarkedParameters, LayersReset) {
  on_ranks(3, [](const MPU& mpu) {
    const auto linear = [] { return seeded([] { return torch::nn::Linear(5, 7); }); };
    torch::nn::Linear whole = linear(), rows = linear(), columns = linear();
    torch::nn::Conv1d cut_conv =
        seeded([] { return torch::nn::Conv1d(torch::nn::Conv1dOptions(5, 7, 3)); });
    mark(rows->weight, mpu, 0);
    mark(rows->bias, mpu, 0);
    mark(columns->weight, mpu, 1);
    mark(cut_conv->weight, mpu, 1);
    const auto reset = [](torch::nn::Linear& layer) {
      test::make_seeded(12, [&] { return layer->reset_parameters(), 0; });
    };
    reset(whole);
    reset(rows);
    EXPECT_TRUE(torch::equal(full_tensor(rows->weight.detach()), whole->weight));
    EXPECT_TRUE(torch::equal(full_tensor(rows->bias.detach()), whole->bias));
    torch::nn::Embedding table = seeded(
        [] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 5).padding_idx(3)); });
    torch::nn::Embedding cut_table = seeded([] { return torch::nn::Embedding(7, 5); });
    mark(cut_table->weight, mpu, 0);
    set_padding_row(cut_table->weight, 3);  // as initialize does
    test::make_seeded(12, [&] { return table->reset_parameters(), 0; });
    EXPECT_EQ(table->weight[3].abs().sum().item<float>(), 0);
    const at::Generator generator = at::detail::createCPUGenerator(12);
    {
      torch::NoGradGuard no_grad;
      cut_table->weight.fill_(2);
      cut_table->weight.normal_(0, 1, generator);
      EXPECT_NE(full_tensor(cut_table->weight)[3].abs().sum().item<float>(), 0);  // by hand
    }
    cut_table->reset_parameters();
    EXPECT_EQ(full_tensor(cut_table->weight)[3].abs().sum().item<float>(), 0);
    EXPECT_NE(full_tensor(cut_table->weight)[2].abs().sum().item<float>(), 0);
    EXPECT_THAT(error_of([&] { columns->reset_parameters(); }), HasSubstr("kaiming_uniform_"));
    EXPECT_THAT(error_of([&] { cut_conv->reset_parameters(); }), HasSubstr("kaiming_uniform_"));
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

TEST(MarkedParameters, APartThatIsEverythingIsNotGuessedAbout) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor p = marked(numbers({1, 5}), mpu);  // rank 0 holds the row, the others nothing
    torch::NoGradGuard no_grad;
    Tensor whole = torch::zeros({1, 5}, torch::kDouble), part = torch::zeros_like(local_tensor(p));
    EXPECT_THAT(error_of([&] { whole.copy_(p); }), HasSubstr("full_tensor"));
    EXPECT_THAT(error_of([&] { part.add_(p); }), HasSubstr("local_tensor"));
    whole.copy_(full_tensor(p));
    expect_close(whole, numbers({1, 5}), "the whole");
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
/// Tensors like a parameter, and copies of one, are no parameters: the forward may write to them
/// what a gradient follows.
TEST(MarkedParameters, WhatIsMadeLikeOneIsWrittenByTheForward) {
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&, const Tensor&)>>>
      uses = {
          {"1 - p", [](const Tensor& p, const Tensor& x) { return x * (1.0 - p); }},
          {"2 / p", [](const Tensor& p, const Tensor& x) { return x * (2 / p); }},
          {"remainder", [](const Tensor& p, const Tensor& x) { return x * (3.0 % (p + 2)); }},
          {"zeros_like", [](const Tensor& p,
                            const Tensor& x) { return x * torch::zeros_like(p).add_(p).mul_(x); }},
          {"ones_like",
           [](const Tensor& p, const Tensor& x) { return torch::ones_like(p).sub_(p).exp_() * x; }},
          {"full_like",
           [](const Tensor& p, const Tensor& x) {
             Tensor y = torch::full_like(p, 3);
             y.mul_(x);
             y.sigmoid_();
             return y * p;
           }},
          {"clone", [](const Tensor& p, const Tensor& x) { return p.clone().mul_(2).add_(x); }},
          {"clone, saved", [](const Tensor& p, const Tensor& x) { return p.clone().tanh_() * x; }},
          {"clone, twice",
           [](const Tensor& p, const Tensor& x) {
             Tensor y = p.clone();
             const Tensor z = y + x;
             y.mul_(p);
             return y + z;
           }},
          {"clone, zeroed",
           [](const Tensor& p, const Tensor& x) { return p.clone().zero_() + p * x; }},
          {"detached copy",
           [](const Tensor& p, const Tensor& x) { return p.detach().clone().add_(p).mul_(x); }},
      };
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [&](const MPU& mpu) {
      for (const auto& [name, use] : uses) {
        const Tensor w = leaf(numbers({5, 3}) + 2), p = marked(w, mpu),
                     x = leaf(numbers({5, 3}, 1)), u = leaf(x);
        const Tensor expected = use(w, x), actual = use(p, u);
        expect_close(actual, expected, name);
        expected.pow(2).sum().backward();
        actual.pow(2).sum().backward();
        expect_close(p.grad(), w.grad(), std::string(name) + ", gradient");
        expect_close(u.grad(), x.grad(), std::string(name) + ", gradient of x");
        expect_close(p, w, std::string(name) + ", parameter");
      }
      const Tensor p = marked(numbers({5, 3}), mpu);
      EXPECT_EQ((1 - p).sizes(), torch::IntArrayRef({5, 3}));  // as of all that a forward computes
      Tensor alias = p.alias();
      EXPECT_THAT(error_of([&] { alias.mul_(2); }), HasSubstr("in place"));
    });
  }
}

TEST(MarkedParameters, SetDataTakesItsPartOfAPlacedTensor) {
  on_ranks(3, [](const MPU& mpu) {
    Tensor p = marked(numbers({5, 3}), mpu), plain = numbers({2, 2});
    const Tensor x = placed(numbers({5, 3}, 2), mpu, 1);
    p.set_data(x * 2);
    expect_close(p, numbers({5, 3}, 2) * 2, "parameter");
    EXPECT_EQ(layout(p)->to_string(), layout_of(mpu, {5, 3}, 0)->to_string());
    EXPECT_TRUE(p.requires_grad());
    (p * 3).sum().backward();
    expect_close(p.grad(), torch::full({5, 3}, 3.0, torch::kDouble), "gradient");
    plain.set_data(x * 3);
    EXPECT_FALSE(is_placed(plain));
    expect_close(plain, numbers({5, 3}, 2) * 3, "an ordinary tensor");
    EXPECT_THAT(error_of([&] {
                  p.set_data(placed(numbers({3, 5}), mpu, 0));
                }),
                HasSubstr("keeps its shape"));
  });
}

