// Where the values of a model live: along a pipeline between steps, in a step, and otherwise.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "parallelizers/pipeline/crossing/evaluation_residence.h"
#include "parallelizers/pipeline/run/step_residence.h"
#include "tests/residency_test/stages.h"
#include "tests/support/error_of.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

ContextPtr context_with(const MPU& mpu, std::shared_ptr<Residence> residence) {
  auto context = context_of(std::make_shared<const Mesh>(std::vector{mpu.tensor_group()}));
  context->set_residence(std::move(residence));
  return context;
}

TEST(Residence, IsAnotherInAStep) {
  const MPU mpu(World::fake(0, 1));
  const auto between = std::make_shared<EvaluationResidence>(StageRanks::one_each(2, 0),
                                                             mpu.pipeline_group(), at::kCPU);
  const auto step = std::make_shared<StepResidence>(*between);
  const auto context = context_of(mpu.tensor_mesh());
  EXPECT_EQ(context->residence(), nullptr);
  context->set_residence(between, step);
  EXPECT_EQ(context->residence(), between.get());
  ASSERT_TRUE(context->begin_step());
  EXPECT_FALSE(context->begin_step());
  EXPECT_EQ(context->residence(), step.get());
  EXPECT_THAT(error_of([&] { step->check_carried([] { return std::string("mm needs it"); }); }),
              HasSubstr("mm needs it in a backward pass"));
  // Both are of the same values.
  step->move_to(at::kMeta);
  EXPECT_EQ(between->device(), at::kMeta);
  EXPECT_EQ(&between->shapes(), &step->shapes());
  context->end_step();
  EXPECT_EQ(context->residence(), between.get());
}

TEST(Residence, AModelWithoutAPipelineIsInAStepAsWell) {
  const MPU mpu(World::fake(0, 1));
  const ContextPtr context = context_of(mpu.tensor_mesh());
  ASSERT_TRUE(context->begin_step());
  EXPECT_TRUE(context->in_step());
  EXPECT_EQ(context->residence(), nullptr);
  context->end_step();
  EXPECT_FALSE(context->in_step());
}

/// Another kind: each weight lies on one data rank, and comes from there for every call.
class HeldByOne final : public Residence {
 public:
  explicit HeldByOne(const std::shared_ptr<Group>& data)
      : Residence(StageRanks::one_each(data->size(), data->rank()), data, at::kCPU) {}

  CallPlace begin(const OperatorEntry&, c10::ArrayRef<c10::IValue>, const ContextPtr&) override {
    return {};
  }
  Value operand(const CallPlace&, const OperatorEntry&, c10::ArrayRef<c10::IValue>, const Tensor&,
                Value value) override {
    if (!value.layout || !value.layout->resident()) return value;
    Tensor whole = value.layout->here() ? value.local.clone() : torch::empty(value.local.sizes());
    pipeline()->broadcast(whole, value.layout->stages().first());
    return {whole, nullptr};
  }
  std::vector<c10::IValue> call(const OperatorEntry&, std::vector<c10::IValue>) override {
    throw std::logic_error("every rank runs every call");
  }
  std::vector<c10::IValue> read(const OperatorEntry&, std::vector<c10::IValue>) override {
    throw std::logic_error("every rank runs every call");
  }
  void put_on_zeros(const OperatorEntry&, c10::function_ref<std::vector<c10::IValue>()>) override {}
};

TEST(Residence, OfAnotherKindIsAnHeir) {
  run_as_threads(2, [](World world) {
    const MPU mpu(std::move(world));
    const ContextPtr context = context_with(mpu, std::make_shared<HeldByOne>(mpu.data_group()));
    const auto drawn = [](at::IntArrayRef sizes) {
      return make_seeded(3, [&] { return torch::randn(sizes); });
    };
    const Tensor weight = drawn({4, 6}), x = drawn({5, 6});
    const torch::NoGradGuard no_grad;
    const Tensor expected = torch::linear(x, weight).relu();
    place(weight, context, on(1), "w");
    EXPECT_EQ(is_here(weight), mpu.rank("data") == 1);
    const Tensor y = torch::linear(x, weight).relu();
    EXPECT_FALSE(is_placed(y));
    EXPECT_TRUE(torch::equal(y, expected));
    EXPECT_EQ(mpu.data_group()->ledger().total("broadcast").calls, 1);
  });
}

}  // namespace
}  // namespace oslo::test
