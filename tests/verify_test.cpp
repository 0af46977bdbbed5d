// verify: a parallel model against the same model on one device, and where they first differ.
#include <gmock/gmock.h>

#include "tests/models/gpt2.h"
#include "tests/models/small.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using models::GPT2;
using models::Mlp;
using parity::make_seeded;
using parity::tensor_parallel;
using test::in;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kTwo = tensor_parallel(2);

Mlp seeded_mlp(uint64_t seed = 1) {
  return make_seeded(seed, [] { return Mlp(); });
}

torch::Tensor some_input() {
  return torch::arange(40, torch::kFloat).sin().view({5, 8});
}

int64_t count(const Verification& found, Comparison::Of of) {
  int64_t counted = 0;
  for (const Comparison& each : found.comparisons()) counted += each.of == of;
  return counted;
}

TEST(Verify, EverythingOfAnEqualModelIsCompared) {
  run_as_threads(4, [](World world) {  // dp 2 x tp 2
    const auto make = [] { return make_seeded(3, [] { return GPT2(models::GPT2Options()); }); };
    GPT2 model = make(), reference = make();
    const ParallelModel parallel = initialize(model, Config::parse(kTwo), in(world));
    const auto tokens = torch::arange(14).view({2, 7});
    const Verification found = verify(parallel, reference, tokens);
    EXPECT_TRUE(found.equal()) << found.to_string();
    EXPECT_EQ(found.unmatched_operators(), 0);
    const auto parameters = static_cast<int64_t>(reference->parameters().size());
    EXPECT_EQ(count(found, Comparison::Of::weight), parameters);
    EXPECT_EQ(count(found, Comparison::Of::gradient), parameters);
    EXPECT_EQ(count(found, Comparison::Of::output), 1);
    // Two embeddings, their sum, two blocks of some 15 operators, the last norm and the head.
    EXPECT_GT(count(found, Comparison::Of::operation), 30);
    EXPECT_THAT(found.to_string(), AllOf(HasSubstr("equals the reference"), HasSubstr("c_proj")));
  });
}

/// Centres what is centred: means that are nothing but rounding, kept in a buffer by LibTorch and
/// by hand, and what is computed of them.
struct CentredImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = second(first(down(torch::relu(up(x)))));
    const auto mean = y.mean(0);
    {
      torch::NoGradGuard no_grad;
      average.mul_(0.9).add_(mean.detach() * 0.1);
    }
    return wrong ? y * 1.01 : y + mean * 3;
  }
  torch::nn::Linear up{register_module("up", torch::nn::Linear(8, 12))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(12, 8))};
  torch::nn::BatchNorm1d first{register_module("first", torch::nn::BatchNorm1d(8))};
  torch::nn::BatchNorm1d second{register_module("second", torch::nn::BatchNorm1d(8))};
  torch::Tensor average{register_buffer("average", torch::zeros({8}))};
  bool wrong = false;
};
TORCH_MODULE(Centred);

TEST(Verify, RoundingIsMeasuredByWhatWasSummed) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const int size : {2, 3}) {
      run_as_threads(size, [&](World world) {
        Centred model = make_seeded(3, [] { return Centred(); });
        Centred reference = make_seeded(3, [] { return Centred(); });
        model->to(type);
        reference->to(type);
        const auto parallel = initialize(model, Config::parse(tensor_parallel(size)), in(world));
        const auto x = torch::arange(184, type).sin().view({23, 8});
        const Verification found = verify(parallel, reference, x);
        EXPECT_TRUE(found.equal()) << found.to_string();
        // An error of a hundredth is one still, and small values are not let off.
        model->wrong = true;
        EXPECT_FALSE(verify(parallel, reference, x).equal());
        model->wrong = false;
        {
          torch::NoGradGuard no_grad;
          model->average.add_(1e-3);
        }
        const std::string told = *verify(parallel, reference, x).first_difference();
        EXPECT_THAT(told, HasSubstr("aten::mul_"));
        EXPECT_EQ(told.find("verify in double") != std::string::npos, type == torch::kFloat);
      });
    }
  }
}

/// The shape that its weight has: on one device the whole one.
struct CarelessImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = torch::relu(up(x));
    return down(hidden / double(up->weight.size(0)));
  }
  torch::nn::Linear up{register_module("up", torch::nn::Linear(8, 12))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(12, 8))};
};
TORCH_MODULE(Careless);

TEST(Verify, NamesTheFirstOperatorAndItsLayer) {
  run_as_threads(2, [](World world) {
    const auto make = [] { return make_seeded(1, [] { return Careless(); }); };
    Careless model = make(), reference = make();
    const ParallelModel parallel = initialize(model, Config::parse(kTwo), in(world));
    const Verification found = verify(parallel, reference, some_input());
    ASSERT_FALSE(found.equal());
    // t, addmm and relu are right; half of the size doubles the value.
    EXPECT_THAT(*found.first_difference(),
                StartsWith("operator 3, aten::div at layer up: differs by 1 of"));
    EXPECT_THAT(found.to_string(), HasSubstr("DIFFERS"));
  });
}

TEST(Verify, NamesAWeightThatDiffersBeforeAnythingRuns) {
  run_as_threads(2, [](World world) {
    Mlp model = seeded_mlp(1), reference = seeded_mlp(1);
    {
      const torch::NoGradGuard no_grad;
      reference->down->bias[3] += 1;
    }
    const ParallelModel parallel = initialize(model, Config::parse(kTwo), in(world));
    const Verification found = verify(parallel, reference, some_input());
    ASSERT_FALSE(found.equal());
    EXPECT_THAT(*found.first_difference(), StartsWith("weight down.bias: differs by"));
  });
}

TEST(Verify, EveryRankHearsOfADifferenceOnOne) {
  run_as_threads(3, [](World world) {
    const auto make = [] { return make_seeded(1, [] { return models::Containers(); }); };
    models::Containers model = make(), reference = make();
    model->eval();
    reference->eval();
    const ParallelModel parallel = initialize(model, Config::parse(tensor_parallel(3)), in(world));
    if (world.rank() == 2) {
      const torch::NoGradGuard no_grad;
      model->norm->running_mean[1] += 1;  // every rank has all of it
    }
    const auto words = torch::arange(6);
    const Verification found = verify(parallel, reference, words);
    ASSERT_FALSE(found.equal());
    EXPECT_THAT(*found.first_difference(),
                AllOf(HasSubstr("aten::batch_norm at layer norm"), HasSubstr("(rank 2)")));
  });
}

TEST(Verify, GradientsTooAreCompared) {
  struct Scaled : torch::autograd::Function<Scaled> {
    static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                                 double by) {
      context->saved_data["by"] = by;
      return x.clone();
    }
    static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::tensor_list gradients) {
      return {gradients[0] * context->saved_data["by"].toDouble(), torch::Tensor()};
    }
  };
  run_as_threads(2, [](World world) {
    Mlp model = seeded_mlp(), reference = seeded_mlp();
    const ParallelModel parallel = initialize(model, Config::parse(kTwo), in(world));
    const auto forward = [&](models::MlpImpl& mlp) {
      const auto x = torch::relu(mlp.up(some_input()));
      return mlp.down(Scaled::apply(x, &mlp == model.get() ? 2.0 : 1.0));
    };
    const Verification found = verify(parallel, reference, forward);
    ASSERT_FALSE(found.equal());
    // The last layer's are right, so the first from the back is the first layer's.
    EXPECT_THAT(*found.first_difference(), StartsWith("gradient up.bias: differs by"));
    EXPECT_TRUE(verify(parallel, reference, forward, {.gradients = false}).equal());
  });
}

TEST(Verify, LeavesNoTrace) {
  run_as_threads(2, [](World world) {
    const auto make = [] { return make_seeded(1, [] { return models::Containers(); }); };
    models::Containers model = make(), reference = make();
    const ParallelModel parallel = initialize(model, Config::parse(kTwo), in(world));
    reference->norm->weight.mutable_grad() = torch::full({8}, 3.0);
    model->norm->weight.mutable_grad() = torch::full({8}, 3.0);
    const auto words = torch::arange(6);
    // Dropout draws from the generator that all threads share: one rank's model after the other is
    // what processes have. Evaluation mode draws nothing, and its batch norm does not count.
    for (models::Containers* each : {&model, &reference}) (*each)->eval();
    EXPECT_TRUE(verify(parallel, reference, words).equal());
    for (models::Containers* each : {&model, &reference}) {
      EXPECT_EQ((*each)->cache.sum().item<float>(), 0);
      EXPECT_EQ((*each)->norm->weight.grad().sum().item<float>(), 24);
      EXPECT_FALSE((*each)->norm->bias.grad().defined());
    }
    parallel.check();
  });
}

/// Two inputs, a pair of outputs, one of them integers.
struct TwoByTwoImpl : torch::nn::Module {
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x,
                                                   const torch::Tensor& shift) {
    const auto y = fc(x) + shift;
    return {y, y.argmax(-1)};
  }
  torch::nn::Linear fc{register_module("fc", torch::nn::Linear(8, 7))};
};
TORCH_MODULE(TwoByTwo);

TEST(Verify, TakesInputsAsTheForwardDoes) {
  run_as_threads(2, [](World world) {
    const auto make = [] { return make_seeded(1, [] { return TwoByTwo(); }); };
    TwoByTwo model = make(), reference = make();
    const ParallelModel parallel = initialize(model, Config::parse(kTwo), in(world));
    const auto x = some_input(), shift = torch::ones({7});
    const Verification found = verify(parallel, reference, {x, shift});
    EXPECT_TRUE(found.equal()) << found.to_string();
    EXPECT_EQ(count(found, Comparison::Of::output), 2);
    EXPECT_TRUE(verify(parallel, reference.ptr(), std::vector<torch::Tensor>{x, shift}).equal());
    EXPECT_TRUE(
        verify(parallel, reference, [&](auto& model) { return model.forward(x, shift); }).equal());
    try {
      verify(parallel, reference, x);
      ADD_FAILURE() << "one input";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("does not take 1 tensors"));
    }
  });
}

TEST(Verify, RefusesWhatCannotBeCompared) {
  run_as_threads(2, [](World world) {
    Mlp model = seeded_mlp(), reference = seeded_mlp();
    const ParallelModel parallel = initialize(model, Config::parse(kTwo), in(world));
    const auto error_of = [&](const auto& with) -> std::string {
      try {
        verify(parallel, with, some_input());
      } catch (const std::exception& error) {
        return error.what();
      }
      return "nothing";
    };
    EXPECT_THAT(error_of(model), HasSubstr("the reference is the parallel model itself"));
    Mlp other = seeded_mlp();
    initialize(other, Config::parse(kTwo), in(world));
    EXPECT_THAT(error_of(other), HasSubstr("the reference is parallel itself"));
    reference->eval();
    EXPECT_THAT(error_of(reference), HasSubstr("the parallel model is in training mode"));
    EXPECT_THAT(error_of(Careless()), HasSubstr("Mlp"));
  });
}

}  // namespace
}  // namespace oslo
