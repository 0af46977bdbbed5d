// Random graphs of layers over random stages, forwards and backwards in every order: equal to one
// device, whatever is skipped, split, shared or used on several stages. OSLO_TEST_GRAPHS says
// how many.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::expect_parity;
using pipeline_parity::Grid;
using pipeline_parity::Tensors;
using pipeline_parity::Trial;
using torch::Tensor;

constexpr int64_t kFeatures = 4;

/// One operation of a graph: on the values `a` and `b`, with `layer` where it has one.
struct Operation {
  enum Kind {
    linear,
    gate,
    add,
    join,
    part,
    detached,
    table,
    read,
    write,
    mask,
    outputs,
    spectrum,
    frozen,
    number_of_kinds
  } kind;
  size_t a, b, layer;

  bool has_layer() const {
    return kind == linear || kind == gate || kind == table || kind == frozen;
  }
  bool has_b() const {
    return kind == gate || kind == add || kind == join || kind == detached || kind == read ||
           kind == spectrum || kind == frozen;
  }
};

struct Program {
  int layers = 1, ranks = 2, chunks = 1, stages = 2;
  std::string kind;
  std::vector<int> stage_of;  ///< by layer
  std::vector<Operation> operations;
  std::vector<size_t> results;  ///< the values that the loss is of

  Program(uint64_t seed, std::string of_kind) : kind(std::move(of_kind)) {
    std::mt19937_64 random(seed);
    const auto below = [&](size_t bound) { return static_cast<size_t>(random() % bound); };
    chunks = pipeline::default_chunks(kind);
    ranks = 2 + static_cast<int>(below(chunks == 1 ? 3 : 2));
    stages = ranks * chunks;
    layers = 3 + static_cast<int>(below(6));
    for (int i = 0; i < layers; ++i) stage_of.push_back(static_cast<int>(below(stages)));
    // Half of them as people place layers: in order.
    if (below(2) == 0) std::sort(stage_of.begin(), stage_of.end());
    const size_t length = 5 + below(11);
    for (size_t i = 0; i < length; ++i) {
      const size_t values = i + 1;
      constexpr std::array kOfLayers{Operation::linear, Operation::gate, Operation::linear,
                                     Operation::table};
      const auto kind = below(2) == 0
                            ? kOfLayers[below(kOfLayers.size())]
                            : static_cast<Operation::Kind>(below(Operation::number_of_kinds));
      // Mostly the latest value, so that graphs are deep; sometimes one from long ago.
      const size_t a = below(3) > 0 ? values - 1 : below(values);
      const size_t b = below(values);
      // Mostly the layers' own order, so that values go through all stages.
      const size_t layer = below(3) > 0 ? i * stage_of.size() / length : below(layers);
      operations.push_back({kind, a, b, layer});
      // A stage that writes into a tensor of no stage makes it its own in a step, not in the search
      // for parameters' stages, which then asks for the plan of what is computed with it.
      const std::vector<int> found = stages_of_values();
      if (kind == Operation::write && found[a] < 0 && found[b] >= 0) {
        operations.back().kind = Operation::add;
      }
    }
    results.push_back(length);
    if (below(3) == 0) results.push_back(below(length));
  }

  /// The stage of each value; -1 of the input, which all have.
  std::vector<int> stages_of_values() const {
    std::vector<int> found{-1};
    for (const Operation& each : operations) {
      int stage = each.has_layer() ? stage_of[each.layer] : -1;
      for (const size_t value : {each.a, each.has_b() ? each.b : each.a}) {
        stage = std::max(stage, found[value]);
      }
      found.push_back(stage);
    }
    return found;
  }

  std::string text() const {
    std::string text = c10::str(kind, ", ", ranks, " ranks, ", stages, " stages, layers on ");
    for (const int stage : stage_of) text += std::to_string(stage);
    for (const Operation& each : operations) {
      text += c10::str(" ", static_cast<int>(each.kind), ":", each.a, ",", each.b, ",", each.layer);
    }
    return text;
  }

  bool has(Operation::Kind kind) const {
    return std::any_of(operations.begin(), operations.end(),
                       [&](const Operation& each) { return each.kind == kind; });
  }

  /// `sharded`: over two data ranks, which keep parts of the weights; `one_copy`: in memory that
  /// they share.
  std::string config(bool sharded, bool one_copy) const {
    std::string patterns;
    for (int i = 0; i < layers; ++i) {
      patterns += c10::str(i == 0 ? "" : ", ", "\"layer", i, "\": ", stage_of[i]);
    }
    std::string more;
    if (sharded) {
      more = c10::str(R"(, "zero_optimization": {"enabled": true, "stage": 3, "copies_per_host": )",
                      one_copy ? 1 : 0, "}");
    }
    return c10::str(R"({"parallel": {"data": )", sharded ? 2 : 1, R"(, "pipeline": {"size": )",
                    ranks, R"(, "schedule": ")", kind, R"("}}, "stages": {)", patterns, "}", more,
                    "}");
  }
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Program& of) : program(of) {
    for (int i = 0; i < of.layers; ++i) {
      layers.push_back(
          register_module(c10::str("layer", i), torch::nn::Linear(kFeatures, kFeatures)));
    }
  }

  Tensor forward(const Tensor& input) {
    Tensors values{input};
    for (const Operation& each : program.operations) {
      const Tensor &a = values[each.a], &b = values[each.b];
      torch::nn::Linear& layer = layers[each.layer];
      values.push_back(run(each.kind, a, b, layer));
    }
    Tensor sum = layers[0](input).mean(-1) * 0.1;  // that something has a gradient
    for (const size_t result : program.results) sum = sum + values[result].pow(2).mean(-1);
    return sum;
  }

  static Tensor run(Operation::Kind kind, const Tensor& a, const Tensor& b,
                    torch::nn::Linear& layer) {
    switch (kind) {
      case Operation::linear:
        return torch::tanh(layer(a));
      case Operation::gate:
        return torch::sigmoid(layer(a)) * b;
      case Operation::add:
        return a + b * 0.5;
      case Operation::join: {
        const auto halves = torch::cat({a, b}, -1).chunk(2, -1);
        return halves[1] - halves[0] * 0.3;
      }
      case Operation::part: {
        const auto sorted = a.sort(-1);
        return std::get<0>(sorted) + std::get<1>(sorted).to(a.dtype()) * 0.1;
      }
      case Operation::detached:
        return a.detach() * b;
      case Operation::table:
        return torch::matmul(a, layer->weight.t()) + layer->bias.sum();
      case Operation::read:
        return a.abs().max().item<double>() > 1 ? a / 2 : a + b;
      case Operation::write: {
        Tensor written = a * 0.9;
        written.narrow(-1, 1, 2).mul_(0.5);
        const Tensor before = torch::sigmoid(written);
        written += b * 0.3;  // which may lie on a later stage
        return before + written.add_(0.1);
      }
      case Operation::mask: {
        const Tensor above = a > 0.05;
        Tensor filled = a.detach() * 0.5;
        filled.index_put_({above}, a.index({above}) * 0.7);
        return filled;
      }
      case Operation::outputs: {
        const auto top = a.topk(3, -1);
        const auto halves = a.split_with_sizes({1, 3}, -1);
        return torch::cat({std::get<0>(top) * halves[1], halves[0]}, -1);
      }
      case Operation::spectrum:
        return torch::tanh(torch::fft::irfft(torch::fft::rfft(a) * torch::fft::rfft(b), kFeatures));
      case Operation::frozen: {
        const torch::NoGradGuard no_grad;
        return torch::tanh(layer(a)) + b * 0.1;
      }
      case Operation::number_of_kinds:
        break;
    }
    return a;
  }

  Program program;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Net);

/// As many as asked for, or as many as the kind needs.
int micro_batches_for(const Program& program, int asked) {
  if (program.kind == "dualpipev") return std::max(asked, 2 * program.ranks);
  if (program.kind != "interleaved") return asked;
  while (asked % std::max(1, asked / program.ranks) != 0) ++asked;
  return asked;
}

/// How many programs have what the graphs are for.
struct Covered {
  int skips = 0;            ///< a value goes two stages on, or more
  int spread = 0;           ///< a value is used on several stages
  int shared = 0;           ///< a layer is used on several stages
  int splits = 0;           ///< halves of one value
  int several_results = 0;  ///< an operator has several
  std::set<Operation::Kind> operations = {};

  void add(const Program& program) {
    const std::vector<int> stages = program.stages_of_values();
    std::map<size_t, std::set<int>> readers, users;
    bool skips_one = false, splits_one = false, has_several = false;
    for (size_t i = 0; i < program.operations.size(); ++i) {
      const Operation& each = program.operations[i];
      const int stage = stages[i + 1];
      operations.insert(each.kind);
      for (const size_t value : {each.a, each.has_b() ? each.b : each.a}) {
        if (stages[value] < 0) continue;
        skips_one |= stage - stages[value] >= 2;
        readers[value].insert(stage);
      }
      if (each.has_layer()) users[each.layer].insert({stage, program.stage_of[each.layer]});
      splits_one |= each.kind == Operation::join || each.kind == Operation::outputs;
      has_several |= each.kind == Operation::part || each.kind == Operation::outputs;
    }
    const auto on_several = [](const auto& sets) {
      return std::any_of(sets.begin(), sets.end(),
                         [](const auto& each) { return each.second.size() > 1; });
    };
    skips += skips_one;
    spread += on_several(readers);
    shared += on_several(users);
    splits += splits_one;
    several_results += has_several;
  }
};

void expect_covered(const Covered& covered, int at_least) {
  EXPECT_EQ(covered.operations.size(), static_cast<size_t>(Operation::number_of_kinds));
  for (const int number :
       {covered.skips, covered.spread, covered.shared, covered.splits, covered.several_results}) {
    EXPECT_GE(number, at_least);
  }
}

Program program_of(int seed) {
  const std::vector<std::string> kinds = pipeline::schedule_kinds();
  return Program(seed, kinds[seed % kinds.size()]);
}

constexpr int kUsualGraphs = 40;

TEST(PipelineRandomGraphs, HaveSkipsSplitsSeveralResultsAndSharedWeightsUnderEveryKind) {
  Covered usual;
  std::map<std::string, Covered> of_kind;
  for (int seed = 0; seed < 500; ++seed) {
    const Program program = program_of(seed);
    if (seed < kUsualGraphs) usual.add(program);
    of_kind[program.kind].add(program);
  }
  expect_covered(usual, 8);
  ASSERT_EQ(of_kind.size(), pipeline::schedule_kinds().size());
  for (const auto& [kind, covered] : of_kind) {
    SCOPED_TRACE(kind);
    expect_covered(covered, 15);
  }
}

TEST(PipelineRandomGraphs, TrainAsOnOneDevice) {
  const char* asked = std::getenv("OSLO_TEST_GRAPHS");
  const int number = asked == nullptr ? kUsualGraphs : std::atoi(asked);
  int trained = 0;
  for (int seed = 0; seed < number && !testing::Test::HasFailure(); ++seed) {
    const Program program = program_of(seed);
    SCOPED_TRACE(c10::str("seed ", seed, ": ", program.text()));
    Trial trial;
    // Replicas of other batches that go other ways gather other weights: that is an error by name.
    const bool one_copy = seed % 2 == 0;
    const bool sharded = seed % 3 == 1 && (one_copy || !program.has(Operation::read));
    trial.grid = {sharded ? 2 : 1, 1, program.ranks};
    trial.kind = program.kind;
    trial.micro_batches = micro_batches_for(program, 1 + seed % 5);
    // A forward that looks at values may be one that a kind of several stages a rank refuses.
    trial.may_refuse = program.chunks > 1;
    trial.steps = 2;
    trial.config = program.config(sharded, one_copy);
    trial.example = seed / 2 % 2 == 0;
    trial.batch_coupled = true;
    const int64_t rows = 2 * trial.micro_batches * trial.grid.data;
    trained += expect_parity(
        trial, [&] { return Net(program); },
        [&](int) {
          return Tensors{torch::randn({rows, 3, kFeatures}, torch::kDouble),
                         torch::randn({rows, 3}, torch::kDouble)};
        },
        [](auto& model, const Tensors& micro) {
          return torch::mse_loss(model->forward(micro[0]), micro[1]);
        });
  }
  EXPECT_GE(trained, number * 4 / 5);  // the others were refused before anything ran
}

}  // namespace
}  // namespace oslo::test
