// What DeferredInit records gives, bit for bit, what ordinary construction gives, and leaves the
// generator where that leaves it.
#include <thread>

#include "deferred_models.h"

namespace deferred_models {
namespace {

using torch::indexing::Slice;

TEST(DeferredValues, EveryLayerOfLibTorch) {
  compare([] { return Layers(); });
}

TEST(DeferredValues, TheSizesAtWhichNormalDrawsOtherwise) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    compare([&] {
      return filled(
          {{1}, {3, 5}, {16}, {17}, {5, 5}, {4, 8}, {31}, {33, 3}, {0, 4}},
          [](const Tensor& p) { p.normal_(0.5, 2); }, type);
    });
  }
}

TEST(DeferredValues, InitializersOfLibTorch) {
  using namespace torch::nn::init;
  const std::vector<FilledImpl::Fill> fills{
      [](const Tensor& p) { xavier_normal_(p); },  [](const Tensor& p) { xavier_uniform_(p, 0.7); },
      [](const Tensor& p) { kaiming_normal_(p); }, [](const Tensor& p) { orthogonal_(p); },
      [](const Tensor& p) { sparse_(p, 0.3); },    [](const Tensor& p) { eye_(p); },
      [](const Tensor& p) { constant_(p, 0.3); },  [](const Tensor& p) { dirac_(p.unsqueeze(-1)); },
  };
  for (size_t i = 0; i < fills.size(); ++i) {
    SCOPED_TRACE(i);
    compare([&] { return filled({{7, 11}, {13, 5}}, fills[i]); });
  }
}

TEST(DeferredValues, WritesInPlaceOfViewsSlicesAndTables) {
  const std::vector<FilledImpl::Fill> fills{
      [](Tensor p) { p.normal_().mul_(0.02).add_(1); },
      [](Tensor p) { p.uniform_(-1, 1).erfinv_().mul_(1.4).clamp_(-2, 2); },
      [](Tensor p) { p.t().normal_(); },
      [](Tensor p) { p.t().uniform_(); },
      [](Tensor p) { p.zero_().slice(0, 2, 17).normal_(); },
      [](Tensor p) { p.fill_(3).slice(1, 3, 20).uniform_(); },
      [](Tensor p) { p.fill_(3).slice(1, 3, 20).normal_(); },
      [](Tensor p) { p.uniform_(), p[4].fill_(2), p.select(1, 3).zero_(); },
      [](Tensor p) {
        p.uniform_(), p.index_put_({Slice(), 2}, 5), p[1].copy_(p[0]);
      },
      [](Tensor p) { p.normal_(), p.sub_(p.mean()).div_(p.std()); },
      [](Tensor p) {
        p.normal_(), p.mul_(torch::ones({29}) * 2).add_(torch::rand({1, 29}));
      },
      [](Tensor p) {
        p.copy_(torch::rand({29, 23}).t());
      },
      [](Tensor p) {
        p.copy_(torch::randn({23, 29}, torch::kDouble));
      },
      [](Tensor p) {
        p.copy_(torch::arange(29).div(29).sin().expand({23, 29}));
      },
      [](Tensor p) { p.bernoulli_(0.3); },
      [](Tensor p) { p.exponential_(), p.add_(torch::randn({1})); },
      [](Tensor p) {
        p.copy_(torch::randperm(23 * 29).view({23, 29}));
      },
      [](Tensor p) {
        p.copy_(torch::randint(0, 9, {23, 29})), p.add_(torch::rand_like(p));
      },
      [](Tensor p) {
        p.normal_(), p.copy_(torch::cat({p.slice(0, 20), p.slice(0, 0, 20)}));
      },
      [](Tensor p) { p.normal_(), p.normal_(1, 2), p.uniform_(); },
      [](Tensor p) { p.random_(0, 100), p.cauchy_().clamp_(-9, 9); },
      [](Tensor p) {
        p.copy_(torch::dropout(torch::ones({23, 29}), 0.4, true));
      },
      [](Tensor p) {
        p.copy_(torch::multinomial(torch::ones({23, 50}), 29));
      },
      [](Tensor p) { p.uniform_().tril_(), p.mul_((p > 0.5).to(p.dtype())); },
      [](Tensor p) {
        p.zero_().view({29, 23}).slice(0, 1, 5).fill_(1), p.slice(0, 5).normal_();
      },
  };
  for (size_t i = 0; i < fills.size(); ++i) {
    SCOPED_TRACE(i);
    compare([&] { return filled({{23, 29}}, fills[i]); });
    compare([&] { return filled({{23, 29}}, fills[i], torch::kDouble); });
  }
}

/// Larger than a strip, by a little, so that blocks do not end with them.
TEST(DeferredValues, TensorsOfSeveralStrips) {
  const std::vector<FilledImpl::Fill> fills{
      [](Tensor p) { p.normal_(); },
      [](Tensor p) { p.uniform_(-2, 3).mul_(2); },
      [](Tensor p) { p.normal_().slice(0, 100, 2000).uniform_().add_(1); },
      [](Tensor p) { p.zero_().slice(1, 17, 900).uniform_(); },
      [](Tensor p) { p.copy_(torch::randn(p.sizes(), torch::kHalf)), p.add_(torch::rand_like(p)); },
  };
  for (size_t i = 0; i < fills.size(); ++i) {
    SCOPED_TRACE(i);
    compare([&] { return filled({{3001, 1001}}, fills[i]); });
  }
  compare([&] { return filled({{1301, 1001}}, fills[0], torch::kDouble); });
}

struct BuffersImpl : torch::nn::Module {
  BuffersImpl() {
    const Tensor positions = torch::arange(12, torch::kFloat);
    const Tensor rates = torch::pow(10000, torch::arange(0, 8, 2) / -8.0);
    table = register_buffer("table", torch::zeros({12, 8}));
    table.index_put_({Slice(), Slice(0, torch::indexing::None, 2)},
                     torch::sin(positions.unsqueeze(1) * rates));
    table.index_put_({Slice(), Slice(1, torch::indexing::None, 2)},
                     torch::cos(positions.unsqueeze(1) * rates));
    register_buffer("mask", torch::ones({9, 9}, torch::kBool).tril().view({1, 1, 9, 9}));
    register_buffer("rows", table.slice(0, 2, 5));  // a view of another buffer
    register_buffer("count", torch::tensor(5));
    register_buffer("list", torch::tensor({1.5, 2.5}));
    for (int i = 0; i < 4; ++i) {
      drop.push_back(torch::linspace(0, 0.3, 4)[i].item<double>());
    }
    weight = register_parameter("weight", torch::randn({6, 5}));
    slopes = torch::rand({6});  // not registered
  }
  Tensor forward(const Tensor& x) { return x.matmul(weight.t()) * slopes; }
  Tensor table, weight, slopes;
  std::vector<double> drop;
};
TORCH_MODULE(Buffers);

TEST(DeferredValues, BuffersViewsAndWhatTheConstructorReads) {
  auto [plain, deferred] = compare([] { return Buffers(); });
  EXPECT_EQ(deferred->drop, plain->drop);
  EXPECT_TRUE(deferred->named_buffers()["rows"].is_alias_of(deferred->table));
  const Tensor x = torch::ones({2, 5});
  EXPECT_TRUE(torch::equal(deferred->forward(x), plain->forward(x)));
}

struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : wte(register_module("wte", torch::nn::Embedding(31, 8))),
        head(register_module("head", torch::nn::Linear(8, 31))) {
    head->weight = wte->weight;
    apply([](torch::nn::Module& module) {  // GPT-2's
      const torch::NoGradGuard no_grad;
      if (auto* linear = module.as<torch::nn::Linear>()) linear->weight.normal_(0, 0.02);
      if (auto* table = module.as<torch::nn::Embedding>()) table->weight.normal_(0, 0.02);
    });
  }
  torch::nn::Embedding wte;
  torch::nn::Linear head;
};
TORCH_MODULE(Tied);

TEST(DeferredValues, Ties) {
  auto [plain, deferred] = compare([] { return Tied(); });
  EXPECT_TRUE(deferred->head->weight.is_same(deferred->wte->weight));
  EXPECT_TRUE(torch::equal(deferred->head->weight, plain->head->weight));
}

TEST(DeferredValues, CastsUnderTheGuardAndBehindIt) {
  for (const auto type : {torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    compare([&] {
      Layers layers;
      layers->to(type);
      return layers;
    });
    auto plain = make_seeded(3, [] { return Layers(); });
    plain->to(type);
    auto deferred = make_seeded(3, [] {
      const oslo::DeferredInit guard;
      return Layers();
    });
    deferred->to(type);
    EXPECT_TRUE(oslo::is_deferred(deferred->parameters()[0]));
    oslo::materialize(deferred);
    expect_same_model(*deferred, *plain);
  }
}

TEST(DeferredValues, InitializersBehindTheGuard) {
  const auto init = [](Layers& layers) {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : layers->parameters()) parameter.normal_(0, 0.02);
  };
  auto plain = make_seeded(3, [&] {
    Layers layers;
    init(layers);
    return layers;
  });
  auto deferred = make_seeded(3, [&] {
    Layers layers = [] {
      const oslo::DeferredInit guard;
      return Layers();
    }();
    init(layers);
    return layers;
  });
  oslo::materialize(deferred);
  expect_same_model(*deferred, *plain);
}

TEST(DeferredValues, SeedsAndGeneratorsInBetween) {
  const auto make = [] {
    return filled({{40, 40}, {7}}, [](const Tensor& p) {
      auto own = at::make_generator<at::CPUGeneratorImpl>(uint64_t{11});
      p.normal_(0, 1, own);
      p.slice(0, 0, 3).uniform_(0, 1, own);
      torch::manual_seed(5);
      p.slice(0, 3).uniform_();
    });
  };
  compare(make);
}

TEST(DeferredValues, GuardsNestAndAreOfTheirThread) {
  const oslo::DeferredInit outer;
  { const oslo::DeferredInit inner; }
  EXPECT_TRUE(oslo::is_deferred(torch::empty({3})));
  std::thread([] { EXPECT_FALSE(oslo::is_deferred(torch::empty({3}))); }).join();
}

}  // namespace
}  // namespace deferred_models
