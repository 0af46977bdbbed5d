// Initialization after initialize where parameters lie on pipeline stages: every rank draws for
// every parameter what one device draws, whoever holds it, or all ranks refuse by name.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <map>
#include <optional>
#include <set>

#include "tests/marked_parameters_test/libtorch_header.h"
#include "tests/support/initialized.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using pipeline_parity::Grid;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace init = torch::nn::init;

/// Matrices and kernels on both stages.
struct TwoStagesImpl : torch::nn::Module {
  TwoStagesImpl() {
    for (const char* stage : {"first", "second"}) {
      torch::nn::Sequential layers(torch::nn::Linear(5, 4), torch::nn::Conv1d(4, 6, 3));
      register_module(stage, layers);
    }
  }
};
TORCH_MODULE(TwoStages);

std::string two_stages_config(const Grid& grid) {
  return c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", grid.tensor,
                  R"(, "pipeline_parallel_size": )", grid.pipeline,
                  R"(}, "plan": {"*.*": "column"}, "stages": {"first": 0, "second": 1}})");
}

/// A way to fill a parameter, or a new tensor like it.
struct Filler {
  std::string name;
  std::function<void(Tensor)> fill;
  int64_t least_dims = 1, most_dims = 3;
  bool reads_sizes = false;   ///< so that it is refused of a parameter that is cut
  bool communicates = false;  ///< where it is cut, which it may not while it has the generator
};

/// Every function of torch::nn::init that fills a tensor.
std::vector<Filler> initializers() {
  return {{"constant_", [](Tensor t) { init::constant_(t, 0.25); }},
          {"dirac_", [](Tensor t) { init::dirac_(t); }, 3, 3, true},
          {"eye_", [](Tensor t) { init::eye_(t); }, 2, 2, true},
          {"kaiming_normal_", [](Tensor t) { init::kaiming_normal_(t); }, 2, 3, true},
          {"kaiming_uniform_", [](Tensor t) { init::kaiming_uniform_(t, 1); }, 2, 3, true},
          {"normal_", [](Tensor t) { init::normal_(t, 1, 2); }},
          {"ones_", [](Tensor t) { init::ones_(t); }},
          {"orthogonal_", [](Tensor t) { init::orthogonal_(t, 2); }, 2, 3, true},
          {"sparse_", [](Tensor t) { init::sparse_(t, 0.5); }, 2, 2, true},
          {"uniform_", [](Tensor t) { init::uniform_(t, -1, 3); }},
          {"xavier_normal_", [](Tensor t) { init::xavier_normal_(t); }, 2, 3, true},
          {"xavier_uniform_", [](Tensor t) { init::xavier_uniform_(t); }, 2, 3, true},
          {"zeros_", [](Tensor t) { init::zeros_(t); }}};
}

/// By hand, as public programs do it.
std::vector<Filler> by_hand() {
  return {{"truncated", [](Tensor t) { t.normal_().fmod_(2).mul_(0.02).add_(1).clamp_(-1, 1); }},
          {"of one length", [](Tensor t) { t.normal_().div_(t.norm()); }, 1, 3, false, true},
          {"rows of one length", [](Tensor t) { t.normal_().div_(t.norm(2, 0, true)); }, 1, 3,
           false, true},
          {"row by row",
           [](Tensor t) {
             t.fill_(1);
             for (int64_t row = 0; row < 2; ++row) t.slice(0, row, row + 1).uniform_(-1, 1);
           },
           1, 3, false, true},
          {"a mask", [](Tensor t) { t.bernoulli_(0.4).mul_(2); }},
          {"exponential", [](Tensor t) { t.exponential_(2).log_(); }},
          {"noise", [](Tensor t) { t.fill_(1).add_(torch::randn_like(t), 0.1); }}};
}

/// Ways from a parameter to what is filled and, where that is another tensor, goes into it.
struct Way {
  std::string name;
  std::function<Tensor(const Tensor& parameter)> made;
};
std::vector<Way> ways() {
  return {{"itself", [](const Tensor& p) { return p; }},
          {"data", [](const Tensor& p) { return p.data(); }},
          {"detach", [](const Tensor& p) { return p.detach(); }},
          {"zeros_like", [](const Tensor& p) { return torch::zeros_like(p); }},
          {"ones_like", [](const Tensor& p) { return torch::ones_like(p); }},
          {"empty_like", [](const Tensor& p) { return torch::empty_like(p); }},
          {"full_like", [](const Tensor& p) { return torch::full_like(p, 2); }},
          {"randn_like", [](const Tensor& p) { return torch::randn_like(p); }},
          {"clone", [](const Tensor& p) { return p.detach().clone(); }},
          {"of another like it", [](const Tensor& p) { return torch::empty_like(p.clone()); }},
          {"another type", [](const Tensor& p) { return p.detach().to(torch::kFloat); }}};
}

/// Fills each parameter of a model; returns what the generator draws next.
Tensor fill_all(const Filler& filler, const Way& way, torch::nn::Module& model) {
  return test::make_seeded(5, [&] {
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : model.parameters()) {
      if (parameter.dim() < filler.least_dims || parameter.dim() > filler.most_dims) continue;
      const Tensor made = way.made(parameter);
      filler.fill(made);
      if (!made.is_same(parameter)) parameter.copy_(made);
    }
    return torch::rand({3});
  });
}

void expect_fills(const std::vector<Filler>& fillers, const Grid& grid) {
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    const auto make = [] { return TwoStages(); };
    TwoStages alone = test::make_seeded(3, make), model = test::make_seeded(3, make);
    pipeline_parity::make_double(*alone);
    pipeline_parity::make_double(*model);
    const auto parallel =
        initialize(model, Config::parse(two_stages_config(grid)), test::in(world));
    for (const Filler& filler : fillers) {
      for (const Way& way : ways()) {
        SCOPED_TRACE(filler.name + ", " + way.name);
        const bool cut = grid.tensor > 1, placed = way.name == "randn_like";
        const bool refused = cut && filler.reads_sizes && !placed;
        // What reads the sizes of a placed tensor takes rows of it.
        if (cut && (filler.communicates || (filler.reads_sizes && placed))) continue;
        if (refused) {
          EXPECT_THAT(test::error_of([&] { fill_all(filler, way, *model); }),
                      AllOf(HasSubstr(filler.name), HasSubstr("parallel parameter first."),
                            HasSubstr("copy_(whole)")));
          continue;
        }
        const Tensor next = fill_all(filler, way, *model);
        EXPECT_TRUE(torch::equal(next, fill_all(filler, way, *alone))) << "the generator";
        parity::expect_weights(*model, *alone, {1e-12, 1e-12});
      }
    }
  });
}

TEST(StagedInitializers, FillAsOnOneDeviceOrAreRefusedByName) {
  for (const Grid& grid : {Grid{1, 1, 2}, Grid{1, 2, 2}}) {
    SCOPED_TRACE(grid.name());
    expect_fills(initializers(), grid);
    expect_fills(by_hand(), grid);
  }
}

TEST(StagedInitializers, AreAllThatLibTorchHas) {
  std::set<std::string> known;
  for (const Filler& filler : initializers()) known.insert(filler.name);
  const std::set<std::string> found =
      test::found_in_header("nn/init.h", R"(TORCH_API Tensor\s+(\w+)\()");
  EXPECT_EQ(found, known);
}

}  // namespace
}  // namespace oslo
