// What can be done with a value, a parameter or a buffer that another pipeline stage holds.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <array>

#include "parallelizers/pipeline/run/micro_batch.h"
#include "tests/residency_test/stages.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

/// What `call` throws; empty where it throws nothing.
template <typename Call>
std::string thrown_by(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

Tensor drawn(at::IntArrayRef sizes, uint64_t seed = 1) {
  return make_seeded(seed, [&] { return torch::randn(sizes); });
}

/// An activation of 3 x 5 that `stage` holds, with a gradient.
Tensor activation(const ContextPtr& context, int stage, uint64_t seed = 1) {
  const Tensor weight = drawn({3, 5}, seed).requires_grad_();
  place(weight, context, on(stage));
  return weight * 2;
}

Tensor plain_activation(uint64_t seed = 1) {
  return drawn({3, 5}, seed) * 2;
}

TEST(Residency, AParameterElsewhereOwnsNothingAndSaysWhatTheModelWould) {
  on_stages(2, [&](const MPU&, const ContextPtr& context) {
    torch::nn::Linear layer(5, 3);
    place(layer->weight, context, on(0));
    place(layer->bias, context, on(1));
    for (const Tensor& parameter : layer->parameters()) {
      EXPECT_EQ(parameter.has_storage(), is_here(parameter));
      EXPECT_EQ(parameter.device(), torch::kCPU);
      EXPECT_TRUE(parameter.requires_grad());
      EXPECT_TRUE(parameter.is_leaf());
    }
    layer->to(torch::kDouble);
    EXPECT_EQ(layer->weight.sizes(), torch::IntArrayRef({3, 5}));
    for (const Tensor& parameter : layer->parameters()) {
      EXPECT_EQ(parameter.dtype(), torch::kDouble);
      EXPECT_EQ(parameter.has_storage(), is_here(parameter));
      EXPECT_EQ(parameter.device(), torch::kCPU);
      EXPECT_TRUE(parameter.requires_grad());
    }
    EXPECT_EQ(layout(layer->weight)->stages(), on(0));
    const Tensor& absent = context->stage_ranks().rank() == 0 ? layer->bias : layer->weight;
    EXPECT_THAT(thrown_by([&] { absent.data_ptr<double>(); }), HasSubstr("another pipeline stage"));
    EXPECT_THAT(thrown_by([&] { local_tensor(absent); }), HasSubstr("pipeline stage"));
    EXPECT_THAT(thrown_by([&] { absent.norm().item<double>(); }), HasSubstr("pipeline stage"));
    // An optimizer's state and steps pass over it.
    torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    (context->stage_ranks().rank() == 0 ? layer->weight : layer->bias).sum().backward();
    EXPECT_FALSE(absent.grad().defined());
    const Tensor own = context->stage_ranks().rank() == 0 ? layer->weight : layer->bias;
    const Tensor before = local_tensor(own).clone();
    optimizer.step();
    EXPECT_TRUE(torch::allclose(local_tensor(own), before - 0.1));
  });
}

TEST(Residency, ReadingAValueElsewhereIsRefusedByName) {
  on_stages(2, [&](const MPU&, const ContextPtr& context) {
    const Tensor x = activation(context, 1), plain = plain_activation();
    ASSERT_TRUE(is_placed(x));  // on its own stage, too
    EXPECT_TRUE(is_placed(full_tensor(x)));
    EXPECT_EQ(x.device(), torch::kCPU);
    EXPECT_EQ(x.strides(), plain.strides());
    if (context->stage_ranks().rank() == 1) {
      EXPECT_EQ(x.sum().item<float>(), plain.sum().item<float>());
      EXPECT_TRUE(torch::equal(local_tensor(x), plain));
      EXPECT_TRUE(torch::equal(x, x.clone()));
      EXPECT_EQ(x.gt(0).nonzero().size(0), plain.gt(0).nonzero().size(0));
      return;
    }
    const std::vector<std::pair<const char*, std::function<void()>>> readers = {
        {"aten::_local_scalar_dense", [&] { x.sum().item<float>(); }},
        {"aten::_local_scalar_dense", [&] { static_cast<void>(x.sum().is_nonzero()); }},
        {"aten::equal", [&] { static_cast<void>(torch::equal(x, x.clone())); }},
        {"aten::nonzero", [&] { x.gt(0).nonzero(); }},
        {"local_tensor", [&] { local_tensor(x); }},
    };
    for (const auto& [name, read] : readers) {
      EXPECT_THAT(thrown_by(read), AllOf(HasSubstr(name), HasSubstr("pipeline stage"))) << name;
    }
    EXPECT_THAT(thrown_by([&] { x.data_ptr<float>(); }), HasSubstr("pipeline stage"));
  });
}

/// `x` is used on its own stage, on the next, and past it; and again after it was written.
using Counts = std::array<int64_t, 3>;
using Carries = std::function<void(int, const Tensor&, Counts, Counts)>;
Tensor many_uses(Tensor x, const Tensor& y, const Tensor& z, const Carries& carries) {
  Tensor sum = x + y;
  sum = (sum + x) + torch::tanh(x) * y;  // tanh is computed where x is
  carries(1, sum, {2, 0, 0}, {0, 2, 0});
  sum = sum + (z + x);
  carries(2, sum, {3, 1, 0}, {0, 2, 2});
  x.mul_(3);
  sum = sum + (x + y) * z;
  carries(2, sum, {4, 2, 0}, {0, 3, 3});
  return sum.sum();
}

TEST(Residency, AValueCrossesOnceForEachStageAndAgainAfterItWasWritten) {
  std::vector<Tensor> plain;
  for (uint64_t i = 0; i < 3; ++i) plain.push_back(drawn({3, 5}, i).requires_grad_());
  const Tensor expected = many_uses(plain[0] * 2, plain[1] * 2, plain[2] * 2,
                                    [](int, const Tensor&, Counts, Counts) {});
  expected.backward();
  on_stages(3, [&](const MPU& mpu, const ContextPtr& context) {
    std::vector<Tensor> own;
    for (int i = 0; i < 3; ++i) {
      own.push_back(drawn({3, 5}, i).requires_grad_());
      place(own[i], context, on(i));
    }
    MicroBatch micro_batch(mpu.pipeline_group(), context->stage_ranks(), 0, 1);
    const StageCarrier::Scope scope(&micro_batch);
    const auto carries = [&](int stage, const Tensor& sum, Counts sent, Counts received) {
      EXPECT_EQ(layout(sum)->stages(), on(stage));
      EXPECT_EQ(micro_batch.sent(), sent[context->stage_ranks().rank()])
          << context->stage_ranks().rank();
      EXPECT_EQ(micro_batch.received(), received[context->stage_ranks().rank()])
          << context->stage_ranks().rank();
    };
    const Tensor loss = many_uses(own[0] * 2, own[1] * 2, own[2] * 2, carries);
    if (is_here(loss)) {
      EXPECT_TRUE(torch::allclose(local_tensor(loss), expected));
    }
    micro_batch.backward(context->stage_ranks().rank(),
                         is_here(loss) ? local_tensor(loss) : Tensor());
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(own[i].grad().defined(), context->stage_ranks().rank() == i);
      if (context->stage_ranks().rank() != i) continue;
      EXPECT_TRUE(torch::allclose(local_tensor(own[i].grad()), plain[i].grad())) << i;
    }
  });
}

TEST(Residency, WhatWouldGoWrongIsRefusedOnEveryRank) {
  on_stages(2, [&](const MPU& mpu, const ContextPtr& context) {
    MicroBatch micro_batch(mpu.pipeline_group(), context->stage_ranks(), 0, 1);
    Tensor x = activation(context, 0);
    const Tensor y = activation(context, 1, 2);
    EXPECT_THAT(thrown_by([&] { x + y; }), HasSubstr("nobody carries values"));
    const StageCarrier::Scope scope(&micro_batch);
    const Tensor weight = drawn({5, 3}).requires_grad_();
    place(weight, context, on(0), "early.weight");
    EXPECT_THAT(thrown_by([&] { torch::mm(y, weight); }),
                AllOf(HasSubstr("early.weight"), HasSubstr("stage 0")));
    EXPECT_THAT(thrown_by([&] { torch::mm(y.t(), weight.t()); }),
                AllOf(HasSubstr("view"), HasSubstr("stage 0")));
    EXPECT_THAT(thrown_by([&] { x.narrow(0, 0, 1).copy_(y.narrow(0, 0, 1)); }),
                HasSubstr("stage 0"));
    EXPECT_EQ(micro_batch.sent() + micro_batch.received(), 0);
  });
}

/// x is the program's name for it before and after; what was taken of it before is not.
TEST(Residency, AWriteByALaterStageMovesTheValueThere) {
  const Tensor x_alone = plain_activation(), y_alone = plain_activation(2);
  const Tensor expected = ((x_alone + y_alone) * 2).tanh() + x_alone.sum(0);
  on_stages(2, [&](const MPU& mpu, const ContextPtr& context) {
    MicroBatch micro_batch(mpu.pipeline_group(), context->stage_ranks(), 0, 1);
    const StageCarrier::Scope scope(&micro_batch);
    const int rank = context->stage_ranks().rank();
    Tensor x = activation(context, 0);
    const Tensor y = activation(context, 1, 2), sum = x.sum(0), row = x.narrow(0, 0, 1);
    x.add_(y);
    EXPECT_EQ(layout(x)->stages(), on(1));
    EXPECT_EQ(micro_batch.sent(), rank == 0 ? 1 : 0);
    EXPECT_EQ(micro_batch.received(), rank == 1 ? 1 : 0);
    x.mul_(2);
    const Tensor z = x.tanh() + sum;  // of which `sum` crosses, x does not
    EXPECT_EQ(micro_batch.sent() + micro_batch.received(), 2);
    EXPECT_EQ(layout(z)->stages(), on(1));
    if (rank == 1) {
      EXPECT_TRUE(torch::allclose(local_tensor(z), expected));
      EXPECT_TRUE(local_tensor(z).requires_grad());
    }
    EXPECT_THAT(thrown_by([&] { row + 1; }), HasSubstr("elements from before"));
    EXPECT_THAT(thrown_by([&] { torch::tanh(row); }), HasSubstr("elements from before"));
  });
}

TEST(Residency, AnOrdinaryTensorThatIsWrittenBecomesItsWritersOwn) {
  on_stages(2, [&](const MPU&, const ContextPtr& context) {
    const Tensor cache = torch::ones({4, 5}), before = cache.narrow(0, 3, 1);
    {
      const torch::NoGradGuard no_grad;
      cache.narrow(0, 1, 3).copy_(activation(context, 1));
    }
    EXPECT_EQ(layout(cache)->stages(), on(1));
    const Tensor sum = cache.sum() + 1;
    EXPECT_EQ(layout(sum)->stages(), on(1));
    if (context->stage_ranks().rank() == 1) {
      const Tensor expected = torch::cat({torch::ones({1, 5}), plain_activation()});
      EXPECT_TRUE(torch::equal(local_tensor(cache), expected));
      EXPECT_EQ(local_tensor(sum).item<float>(), (expected.sum() + 1).item<float>());
    } else {
      EXPECT_FALSE(cache.has_storage());
      EXPECT_THAT(thrown_by([&] { before.sum(); }), HasSubstr("pipeline stage 1"));
    }
    // With a gradient, as on one device, where the tensor then has one.
    Tensor results = torch::zeros({3, 5});
    results.copy_(activation(context, 1));
    EXPECT_TRUE(results.requires_grad());
    EXPECT_EQ(layout(results * 2)->stages(), on(1));
  });
}

}  // namespace
}  // namespace oslo::test
