// What is refused, by name.
#include <filesystem>

#include "deferred_models.h"
#include "tests/support/temporary_directory.h"

namespace deferred_models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_text(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

torch::nn::Linear deferred_linear(int64_t in = 3, int64_t out = 4) {
  const oslo::DeferredInit guard;
  return torch::nn::Linear(in, out);
}

TEST(DeferredErrors, AModelThatIsNotFilled) {
  auto linear = deferred_linear();
  const auto names_it =
      AllOf(HasSubstr("made under oslo::DeferredInit"), HasSubstr("oslo::materialize"));
  EXPECT_THAT(error_text([&] { linear->forward(torch::ones({2, 3})); }), names_it);
  EXPECT_THAT(error_text([&] {
                const torch::NoGradGuard no_grad;
                linear->forward(torch::ones({2, 3}));
              }),
              names_it);
  EXPECT_THAT(error_text([&] { linear->weight.sum().item<float>(); }), names_it);
  EXPECT_THAT(error_text([&] { linear->weight.mul(2).backward(torch::ones({4, 3})); }), names_it);
  const auto asks = HasSubstr("the data of a tensor was asked for that oslo::DeferredInit made");
  EXPECT_THAT(error_text([&] { linear->weight.data_ptr<float>(); }), asks);
  std::stringstream stream;
  EXPECT_THAT(error_text([&] { torch::save(linear, stream); }), asks);
  const oslo::test::TemporaryDirectory folder;
  oslo::InitializeOptions how;
  how.world = oslo::World::alone();
  auto other = torch::nn::Linear(2, 2);
  const auto parallel = oslo::initialize(other, {}, how);
  other->weight = linear->weight;
  EXPECT_THAT(error_text([&] { parallel.save_parallelized(folder.path() / "x"); }),
              HasSubstr("weight was made under oslo::DeferredInit"));
}

TEST(DeferredErrors, UnderTheGuard) {
  const oslo::DeferredInit guard;
  const Tensor tensor = torch::empty({3});
  EXPECT_THAT(error_text([&] { tensor.data_ptr<float>(); }), HasSubstr("oslo::DeferredInit"));
  EXPECT_THAT(error_text([&] { tensor.resize_({5}); }), HasSubstr("aten::resize_"));
  EXPECT_THAT(error_text([&] { torch::empty({1 << 25}).sum().item<float>(); }),
              AllOf(HasSubstr("64 MB"), HasSubstr("_local_scalar_dense")));
  torch::nn::Linear linear(2, 2);
  EXPECT_THAT(error_text([&] { oslo::materialize(linear); }), HasSubstr("let the guard end"));
  oslo::InitializeOptions how;
  how.world = oslo::World::alone();
  EXPECT_THAT(error_text([&] { oslo::initialize(linear, {}, how); }),
              HasSubstr("let the guard end"));
}

TEST(DeferredErrors, AnOrdinaryTensorThatChangedSince) {
  Tensor table = torch::ones({4, 3});
  torch::nn::Linear linear{nullptr};
  {
    const oslo::DeferredInit guard;
    linear = torch::nn::Linear(3, 4);
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(table);
  }
  table.zero_();
  EXPECT_THAT(error_text([&] { oslo::materialize(linear); }),
              AllOf(HasSubstr("aten::copy_"), HasSubstr("written to since")));
  EXPECT_TRUE(oslo::is_deferred(linear->bias));
}

TEST(DeferredErrors, AnOrdinaryTensorTakesWhatIsWrittenToIt) {
  Tensor table = torch::zeros({4});
  const oslo::DeferredInit guard;
  table.copy_(torch::arange(4));
  EXPECT_EQ(table[3].item<float>(), 3);
}

TEST(DeferredErrors, ParametersOverOneMemory) {
  struct SharingImpl : torch::nn::Module {
    SharingImpl() {
      const Tensor all = torch::randn({8, 4});
      a = register_module("a", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
      a->weight.set_data(all.slice(0, 0, 4));
      register_buffer("b", all.slice(0, 2, 8));
    }
    torch::nn::Linear a{nullptr};
  };
  oslo::run_as_threads(2, [&](oslo::World world) {
    const auto model = make_seeded(1, [] {
      const oslo::DeferredInit guard;
      return std::make_shared<SharingImpl>();
    });
    oslo::InitializeOptions how;
    how.world = world;
    const auto config = oslo::Config::parse(
        R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2},
            "plan": {"a": "column"}})");
    EXPECT_THAT(error_text([&] { oslo::initialize(model, config, how); }),
                HasSubstr("two tensors over one memory"));
  });
}

TEST(DeferredErrors, FillingTwiceChangesNothing) {
  auto linear = deferred_linear();
  oslo::materialize(linear);
  const Tensor before = linear->weight.detach().clone();
  oslo::materialize(linear);
  EXPECT_TRUE(torch::equal(linear->weight, before));
}

}  // namespace
}  // namespace deferred_models
