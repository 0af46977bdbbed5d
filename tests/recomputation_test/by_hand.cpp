// oslo::checkpoint on plain LibTorch tensors: the numbers are those of the plain call.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "parallelizers/memory/recompute/checkpoint.h"
#include "tests/support/counted_memory.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using torch::Tensor;
using Function = std::function<Tensor(const Tensor&)>;

/// What a step gives: its output, the gradients of the input and of parameters.
struct Step {
  Tensor output, input;
  std::vector<Tensor> parameters;
};

Tensor input_of(c10::IntArrayRef sizes) {
  return make_seeded(8, [&] { return torch::randn(sizes).requires_grad_(); });
}

Step step(const Function& function, const Tensor& input, const std::vector<Tensor>& parameters,
          const std::function<Tensor(const Function&, const Tensor&)>& call) {
  const auto clear = [](const Tensor& tensor) { tensor.mutable_grad().reset(); };
  clear(input);
  std::for_each(parameters.begin(), parameters.end(), clear);
  return make_seeded(9, [&] {
    Step made;
    made.output = call(function, input);
    made.output.pow(2).sum().backward();
    made.input = input.grad().clone();
    for (const Tensor& parameter : parameters) {
      made.parameters.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
    }
    // What is drawn next is drawn alike.
    made.output = torch::cat({made.output.detach().flatten(), torch::rand({3})});
    return made;
  });
}

void expect_equal(const Step& a, const Step& b) {
  EXPECT_TRUE(a.output.equal(b.output));
  EXPECT_TRUE(a.input.equal(b.input));
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    ASSERT_EQ(a.parameters[i].defined(), b.parameters[i].defined());
    if (!a.parameters[i].defined()) continue;
    EXPECT_TRUE(a.parameters[i].equal(b.parameters[i])) << i;
  }
}

/// The function plain, and checkpointed in several ways: equal bit for bit, called twice each.
void expect_same(const Function& function, const Tensor& input,
                 const std::vector<Tensor>& parameters = {}, int calls_at_most = 2) {
  at::set_num_threads(1);
  const auto plain =
      step(function, input, parameters, [](const Function& f, const Tensor& x) { return f(x); });
  const CheckpointOptions ways[] = {CheckpointOptions(), CheckpointOptions().whole(),
                                    CheckpointOptions().keep({"matmul", "attention"}),
                                    CheckpointOptions().whole().keep({"matmul", "convolution"})};
  for (const CheckpointOptions& options : ways) {
    int calls = 0;
    const auto again = step(function, input, parameters, [&](const Function& f, const Tensor& x) {
      return checkpoint(
          options,
          [&](const Tensor& each) {
            ++calls;
            return f(each);
          },
          x);
    });
    expect_equal(plain, again);
    EXPECT_LE(calls, calls_at_most);
  }
}

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

/// A transformer's block, written as people write them.
struct Block : torch::nn::Module {
  Block() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})));
    qkv = register_module("qkv", torch::nn::Linear(12, 36));
    out = register_module("out", torch::nn::Linear(12, 12));
    up = register_module("up", torch::nn::Linear(12, 30));
    down = register_module("down", torch::nn::Linear(30, 12));
  }
  Tensor forward(const Tensor& x) {
    const auto parts = qkv->forward(norm->forward(x)).chunk(3, -1);
    const auto heads = [&](const Tensor& t) {
      return t.view({t.size(0), t.size(1), 3, 4}).transpose(1, 2);
    };
    Tensor mixed = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]),
                                                    heads(parts[2]), {}, 0., /*is_causal=*/true);
    mixed = mixed.transpose(1, 2).reshape(x.sizes());
    const Tensor h = x + torch::dropout(out->forward(mixed), 0.2, /*train=*/true);
    return h + torch::dropout(down->forward(torch::gelu(up->forward(h))), 0.2, /*train=*/true);
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};

std::shared_ptr<Block> block(uint64_t seed = 4) {
  return make_seeded(seed, [] { return std::make_shared<Block>(); });
}

TEST(CheckpointByHand, TransformerBlockWithDropout) {
  const auto model = block();
  expect_same([&](const Tensor& x) { return model->forward(x); }, input_of({3, 5, 12}),
              model->parameters());
}

TEST(CheckpointByHand, ConvolutionsNormalizedByTheBatch) {
  torch::nn::Sequential model = make_seeded(5, [] {
    return torch::nn::Sequential(
        torch::nn::Conv2d(3, 5, 3), torch::nn::BatchNorm2d(5),
        torch::nn::ReLU(torch::nn::ReLUOptions(true)), torch::nn::MaxPool2d(2),
        torch::nn::Conv2d(5, 4, 2),
        torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(4).affine(false)));
  });
  const Tensor mean = model->named_buffers()["1.running_mean"];
  const Tensor x = input_of({2, 3, 9, 9});
  mean.zero_();
  model->forward(x);
  model->forward(x);
  const Tensor twice = mean.clone();
  mean.zero_();
  const Tensor y = checkpoint([&](const Tensor& each) { return model->forward(each); }, x);
  model->forward(x);  // updates them again, before backward
  y.sum().backward();
  EXPECT_TRUE(mean.equal(twice));
  expect_same([&](const Tensor& each) { return model->forward(each); }, x, model->parameters());
}

TEST(CheckpointByHand, WhatDecidesValuesAndShapesIsThatOfForward) {
  const Tensor w = input_of({7, 7});
  expect_same(
      [&](const Tensor& x) {
        const Tensor h = torch::dropout(x.matmul(w), 0.2, /*train=*/true);
        const auto [values, indices] = h.topk(3, 1);
        const Tensor positive = h.flatten().index({(h.flatten() > 0).nonzero().squeeze(1)});
        const int64_t rows = 1 + (h.sum().item<float>() > 0 ? 1 : 0);
        const auto parts = h.split_with_sizes({rows, h.size(0) - rows});
        const Tensor drawn = torch::multinomial(torch::softmax(h, 1), 2);
        return torch::cat({(values * h.gather(1, indices)).flatten(), positive.pow(2),
                           parts[0].exp().flatten(), parts[1].sigmoid().flatten(),
                           h.gather(1, drawn).tanh().flatten()});
      },
      input_of({5, 7}), {w});
}

TEST(CheckpointByHand, WritesInPlace) {
  const Tensor w = input_of({4, 6}), b = input_of({6});
  expect_same(
      [&](const Tensor& x) {
        Tensor h = x.matmul(w).add_(b).relu_();
        Tensor sum = torch::zeros({3, 6});
        sum.slice(0, 0, 2).add_(h.slice(0, 0, 2));
        sum.mul_(h.sigmoid());
        h = h.clone();
        h.select(0, 1).mul_(3);
        return torch::cat({h * h, sum.exp()});
      },
      input_of({3, 4}), {w, b});
}

class Cube : public torch::autograd::Function<Cube> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    const Tensor square = x * x;
    context->save_for_backward({x, square});
    return square * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 3 * context->get_saved_variables()[1]};
  }
};

TEST(CheckpointByHand, FunctionsOfTheProgramsOwn) {
  expect_same([](const Tensor& x) { return Cube::apply(Cube::apply(x.sin()).exp()).tanh(); },
              input_of({3, 4}));
}

TEST(CheckpointByHand, MemoryThatIsFilledAndReadByPointers) {
  expect_same(
      [](const Tensor& x) {
        const Tensor mask = torch::zeros({4, 4});
        auto at = mask.accessor<float, 2>();
        for (int i = 0; i < 4; ++i) at[i][i] = -1e9F;
        const Tensor unneeded = x.matmul(x.t()) * 2;
        const Tensor read = torch::full({4}, unneeded.data_ptr<float>()[0]);
        return torch::softmax(x + mask, 1) * read;
      },
      input_of({4, 4}), {}, /*calls_at_most=*/3);  // what is not there is computed after all
}

TEST(CheckpointByHand, AutocastCastsInEachSegmentAlike) {
  torch::nn::Linear tied(6, 6), other(6, 6);
  const auto function = [&](const Tensor& x) {
    return tied->forward(torch::gelu(other->forward(x))).to(torch::kFloat);
  };
  const auto run = [&](bool segments) {
    tied->zero_grad();
    other->zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const Tensor x = input_of({3, 6});
    Tensor h = tied->forward(x);  // casts the weight, and remembers it
    for (int i = 0; i < 2; ++i) h = segments ? checkpoint(function, h) : function(h);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    h.to(torch::kFloat).pow(2).sum().backward();
    return std::vector<Tensor>{h, tied->weight.grad().clone(), other->weight.grad().clone()};
  };
  const auto plain = run(false), again = run(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(again[i])) << i;
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(CheckpointByHand, ReturnsWhatTheFunctionReturns) {
  const Tensor x = input_of({2, 3}), y = input_of({2, 3});
  const auto two = [](const Tensor& a, const Tensor& b) { return std::make_tuple(a * b, a.exp()); };
  const auto [product, power] = checkpoint(two, x, y);
  EXPECT_TRUE(product.equal(x * y));
  EXPECT_TRUE(std::get<1>(checkpoint(two, {x, y})).equal(power));
  const auto list = [](const std::vector<Tensor>& all) {
    return std::vector<Tensor>{all[0] * all[1], all[1].exp()};
  };
  EXPECT_TRUE(checkpoint(list, {x, y})[1].equal(y.exp()));
  EXPECT_TRUE(checkpoint(list, std::vector<Tensor>{x, y})[0].equal(product));
  torch::nn::Linear layer(3, 3);
  EXPECT_TRUE(checkpoint(layer, x).equal(layer->forward(x)));
  EXPECT_TRUE(checkpoint(layer, {x}).equal(layer->forward(x)));
  const auto scaled = [](const Tensor& a, double factor, bool negative) {
    return negative ? a * -factor : a * factor;
  };
  EXPECT_TRUE(checkpoint(scaled, x, 2.0, true).equal(x * -2));
  EXPECT_NE(message_of([&] { checkpoint(two, {x}); }).find("takes 2 tensors, 1 were given"),
            std::string::npos);
}

TEST(CheckpointByHand, OnceABackwardPass) {
  const auto model = block();
  const Tensor x = input_of({2, 3, 12});
  int calls = 0;
  const auto function = [&](const Tensor& each) {
    ++calls;
    Tensor h = model->forward(each);
    return checkpoint([&](const Tensor& inner) { return model->forward(inner); }, h);  // nested
  };
  Tensor loss = checkpoint(function, x).sum();
  EXPECT_EQ(calls, 1);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(calls, 2);
  const Tensor once = x.grad().clone();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(x.grad().equal(once * 2));
  const Tensor again = torch::autograd::grad({loss}, {x})[0];
  EXPECT_EQ(calls, 4);
  EXPECT_TRUE(again.equal(once));
}

TEST(CheckpointByHand, TwiceDifferentiable) {
  const Tensor x = input_of({3, 4});
  const auto function = [](const Tensor& each) { return (each * each.sin()).exp(); };
  const auto second = [&](const Tensor& y) {
    const Tensor first = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {x})[0];
  };
  EXPECT_TRUE(second(function(x)).equal(second(checkpoint(function, x))));
}

TEST(CheckpointByHand, KeepsNothingButItsInputs) {
  const auto model = block();
  const Tensor x = input_of({64, 32, 12});
  const auto kept = [&](const std::function<Tensor()>& forward) {
    const CountedMemory memory;
    const Tensor output = forward();
    return memory.bytes() - static_cast<int64_t>(output.nbytes());
  };
  const int64_t plain = kept([&] { return model->forward(x); });
  const int64_t again =
      kept([&] { return checkpoint([&](const Tensor& t) { return model->forward(t); }, x); });
  EXPECT_GT(plain, 12 * static_cast<int64_t>(x.nbytes()));
  EXPECT_LT(again, 4 * 5056);  // states of the generator: before attention and two dropouts
}

TEST(CheckpointByHand, BackwardOnAnotherThread) {
  at::set_num_threads(1);
  const auto model = block();
  const Tensor x = input_of({2, 3, 12});
  const auto run = [&](bool checkpointed) {
    x.mutable_grad().reset();
    return make_seeded(2, [&] {
      const auto function = [&](const Tensor& each) { return model->forward(each); };
      const Tensor loss = (checkpointed ? checkpoint(function, x) : function(x)).sum();
      std::thread([&] {
        at::set_num_threads(1);
        loss.backward();
      }).join();
      return x.grad().clone();
    });
  };
  EXPECT_TRUE(run(false).equal(run(true)));
}

TEST(CheckpointByHand, HooksFireOnce) {
  const Tensor x = input_of({2, 3});
  int fired = 0;
  const Tensor y = checkpoint(
      [&](const Tensor& each) {
        const Tensor h = each.exp();
        h.register_hook([&](const Tensor& gradient) {
          ++fired;
          return gradient * 2;
        });
        return h.sin();
      },
      x);
  y.sum().backward();
  EXPECT_EQ(fired, 1);
  EXPECT_TRUE(x.grad().allclose(2 * x.exp().cos() * x.exp()));
}

TEST(CheckpointByHand, WhatIsWrittenAfterwardsIsAnError) {
  const auto function = [](const Tensor& each, const Tensor& w) { return (each * w).exp().sin(); };
  const Tensor x = input_of({2, 3}), w = torch::ones({2, 3}).requires_grad_();
  for (const bool input : {true, false}) {
    const Tensor h = x * 1;
    const Tensor y = checkpoint(function, h, w);
    {
      const torch::NoGradGuard none;
      (input ? h : w).add_(1);
    }
    EXPECT_NE(message_of([&] { y.sum().backward(); }).find("modified by an inplace operation"),
              std::string::npos);
  }
}

TEST(CheckpointByHand, FunctionsThatWriteTheirInputs) {
  const Tensor counter = torch::zeros({1});
  const Tensor x = input_of({2, 3});
  checkpoint(
      [&](const Tensor& each) {
        const torch::NoGradGuard none;
        counter.add_(1);
        const torch::AutoGradMode gradients(true);
        return (each.exp() * counter).sin();
      },
      x)
      .sum()
      .backward();
  EXPECT_EQ(counter.item<float>(), 1);
  EXPECT_TRUE(x.grad().allclose(x.exp().cos() * x.exp()));
  const auto reads_first = [](const Tensor& each) {
    const Tensor h = each + 1;
    each.mul_(2);
    return h.sin().exp();
  };
  EXPECT_NE(message_of([&] { checkpoint(reads_first, x * 1); }).find("let it write to a copy"),
            std::string::npos);
}

TEST(CheckpointByHand, FirstOperatorThatDiffersIsNamed) {
  const Tensor x = input_of({2, 3});
  int calls = 0;
  const auto error = [&](const std::function<Tensor(const Tensor&)>& second) {
    calls = 0;
    const Tensor y = checkpoint(
        [&](const Tensor& each) {
          const Tensor h = each.exp();
          return (calls++ == 0 ? h.sin() : second(h)).exp().sin();
        },
        x);
    return message_of([&] { y.sum().backward(); });
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(error([](const Tensor& h) { return h.cos(); }),
         "operator 2 is aten::cos, it was aten::sin");
  expect(error([](const Tensor& h) { return h.t().sin(); }), "operator 2 is aten::t");
  expect(error([](const Tensor& h) { return h.sin().sin(); }), "operator 3 is aten::sin");
}

TEST(CheckpointByHand, AnExceptionLeavesNothingBehind) {
  const auto model = block();
  const Tensor x = input_of({2, 3, 12});
  const auto function = [&](const Tensor& each) { return model->forward(each); };
  const auto good = [&] {
    x.mutable_grad().reset();
    model->zero_grad();
    return make_seeded(2, [&] {
      checkpoint(function, x).sum().backward();
      return x.grad().clone();
    });
  };
  const Tensor expected = good();
  // In the function, when it runs again.
  int calls = 0;
  const Tensor y = checkpoint(
      [&](const Tensor& each) {
        const Tensor h = model->forward(each);
        if (++calls == 2) throw std::runtime_error("the second time");
        return h;
      },
      x);
  EXPECT_NE(message_of([&] { y.sum().backward(); }).find("the second time"), std::string::npos);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(good().equal(expected));
  // In backward, behind the segment.
  const Tensor z = x * 1;
  z.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("a hook"); });
  EXPECT_NE(message_of([&] { checkpoint(function, z).sum().backward(); }).find("a hook"),
            std::string::npos);
  EXPECT_TRUE(good().equal(expected));
  // In forward.
  EXPECT_NE(message_of([&] {
              checkpoint([](const Tensor& each) -> Tensor { return each.view({7}); }, x);
            }).find("invalid for input"),
            std::string::npos);
  EXPECT_TRUE(good().equal(expected));
}

TEST(CheckpointByHand, UnknownKindsToKeepAreRefused) {
  EXPECT_NE(
      message_of([] { CheckpointOptions().keep({"matmull"}); }).find("\"matmull\" is no kind"),
      std::string::npos);
}

}  // namespace
}  // namespace oslo::test
