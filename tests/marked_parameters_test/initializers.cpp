// Initializers after the cut: what one device draws, or a refusal by name.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
          mpu.world().barrier();  // some drew without the lock before they were refused
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

}  // namespace
}  // namespace oslo
