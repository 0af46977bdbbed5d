// Random numbers of a model on pipeline stages: every rank draws what one device draws, for dropout
// and for what the program draws itself; where a rank has several stages, what a run of the same
// kind at pipeline size 1 draws. In processes, as ranks that are threads share a generator.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tests/support/pipeline_parity.h"
#include "tests/support/tool_process.h"

namespace oslo::test {
namespace {

using pipeline_parity::Tensors;
using torch::Tensor;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i) {
      layers.push_back(register_module(c10::str("layer", i), torch::nn::Linear(5, 5)));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) {
      x = torch::dropout(torch::tanh(layer(x)), 0.4, is_training());
      x = x * 2;
      torch::dropout_(x, 0.2, is_training());
    }
    // On no stage in particular: every rank draws it.
    return x * torch::rand_like(x) + torch::rand({5}) * (1 + torch::randn({}).item<double>());
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Net);

constexpr int kMicroBatches = 4;

/// What a rank prints where it is as on one device.
constexpr const char* kSame = "as on one device";

TEST(PipelineRandomChild, DrawsAsOneDevice) {
  const char* kind = std::getenv("OSLO_TEST_SCHEDULE");
  if (kind == nullptr) GTEST_SKIP() << "started by the test below, as a rank";
  const auto run = [&](Net& net, const std::function<double(const Tensors&)>& step) {
    std::vector<double> drawn;
    for (int i = 0; i < 2; ++i) {
      drawn.push_back(step({torch::randn({8, 5}), torch::randn({8, 5})}));
      drawn.push_back(torch::rand({}).item<double>());
      net->zero_grad();
    }
    return drawn;
  };
  const auto loss = [](Net& net, const Tensors& micro) {
    return torch::mse_loss(net->forward(micro[0]), micro[1]);
  };
  const auto scheduled = [&](Net& net, const InitializeOptions& how, const std::string& config) {
    const ParallelModel parallel = initialize(net, Config::parse(config), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicroBatches));
    return run(net, [&](const Tensors& batch) {
      return schedule
          .forward_backward_step(batch, [&](const Tensors& micro) { return loss(net, micro); })
          .loss.item<double>();
    });
  };
  torch::manual_seed(3);
  Net plain;
  InitializeOptions alone;
  alone.world = World::alone();
  const bool several = pipeline::default_chunks(kind) > 1;
  const auto expected =
      several ? scheduled(plain, alone, pipeline_parity::config_of({1, 1, 1}, kind))
              : run(plain, [&](const Tensors& batch) {
                  double sum = 0;
                  for (const Tensors& micro : pipeline_parity::divided(batch, kMicroBatches)) {
                    const Tensor part = loss(plain, micro) / kMicroBatches;
                    part.backward();
                    sum += part.item<double>();
                  }
                  return sum;
                });
  torch::manual_seed(3);
  Net net;
  const auto actual = scheduled(net, {}, std::getenv("OSLO_TEST_CONFIG"));
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-5) << i;
  std::printf("%s\n", kSame);
}

/// Every operator of LibTorch whose schema says that it draws, that takes a tensor and returns a
/// new one or writes its first.
std::vector<c10::OperatorHandle> operators_that_draw() {
  std::vector<c10::OperatorHandle> found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !op->hasTag(at::Tag::nondeterministic_seeded)) continue;
    const auto& arguments = op->schema().arguments();
    const auto writes = [](const c10::Argument& each) {
      return each.alias_info() != nullptr && each.alias_info()->isWrite();
    };
    if (arguments.empty() || *arguments[0].type() != *c10::TensorType::get()) continue;
    // out=, and rrelu_with_noise, which are refused by name.
    if (std::any_of(arguments.begin() + 1, arguments.end(), writes)) continue;
    found.push_back(*op);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return toString(a.operator_name()) < toString(b.operator_name());
  });
  return found;
}

/// What no CPU computes, or not with these arguments, and packed sequences, which stages refuse.
bool left_out(const c10::OperatorHandle& op) {
  const std::string name = toString(op.operator_name());
  for (const char* part : {"cudnn", "miopen", "_mps", "_fused_", "flash", "efficient", "triton",
                           "_fill_mem_eff", "_nested_tensor", "overrideable", ".data"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

/// By type and name; `h` [rows, 5] is where the elements come from.
torch::jit::Stack arguments_for(const c10::OperatorHandle& op, const Tensor& h,
                                const std::optional<at::Generator>& generator) {
  const std::string name = op.operator_name().name;
  const bool recurrent =
      name == "aten::lstm" || name == "aten::gru" || name.starts_with("aten::rnn");
  const bool attends = name.find("attention") != std::string::npos;
  const int64_t gates = name == "aten::lstm" ? 4 : name == "aten::gru" ? 3 : 1;
  // Not all have derivatives.
  const Tensor some = h.detach().abs() * 3 + 0.1;
  const Tensor state = some.new_zeros({2, h.size(0), 5});
  torch::jit::Stack stack;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const std::string& of = argument.name();
    const auto& type = *argument.type();
    if (type.kind() == c10::TypeKind::TensorType) {
      if (attends) {
        stack.emplace_back(h.view({1, 1, h.size(0), 5}));
      } else if (recurrent) {
        stack.emplace_back(of == "hx" ? state : some.unsqueeze(0));
      } else if (of == "count") {
        stack.emplace_back((some * 9).round());
      } else if (of == "high") {
        stack.emplace_back(some.detach().sum().round().to(torch::kLong) + 2);
      } else if (of == "p" || of == "prob" || name == "aten::bernoulli") {
        stack.emplace_back(torch::sigmoid(h.detach()));
      } else {
        const bool signs =
            name.starts_with("aten::rrelu") || name.find("dropout") != std::string::npos;
        stack.emplace_back(signs && of == "self" ? h + 0 : some);
      }
    } else if (of == "hx") {
      stack.emplace_back(std::vector<Tensor>{state, state});
    } else if (of == "params") {
      const Tensor own = torch::full({gates * 5, 5}, 0.1, h.options().requires_grad(false));
      stack.emplace_back(std::vector<Tensor>{own, own, own, own});
    } else if (of == "generator") {
      stack.emplace_back(generator ? c10::IValue(*generator) : c10::IValue());
    } else if (of == "train" || of == "training") {
      stack.emplace_back(true);
    } else if (of == "p" || of == "dropout" || of == "dropout_p") {
      stack.emplace_back(0.4);
    } else if (argument.default_value()) {
      stack.push_back(*argument.default_value());
    } else if (of == "num_samples" || of == "num_layers") {
      stack.emplace_back(2);
    } else if (of == "high" || of == "to") {
      stack.emplace_back(9);
    } else if (of == "low" || of == "from") {
      stack.emplace_back(2);
    } else if (type.kind() == c10::TypeKind::BoolType) {
      stack.emplace_back(false);
    } else if (type.kind() == c10::TypeKind::FloatType) {
      stack.emplace_back(0.7);
    } else {
      stack.emplace_back();
    }
  }
  return stack;
}

Tensor drawn_by(const c10::OperatorHandle& op, const Tensor& h,
                const std::optional<at::Generator>& generator) {
  torch::jit::Stack stack = arguments_for(op, h, generator);
  try {
    op.callBoxed(&stack);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw std::runtime_error(toString(op.operator_name()) + ": " + text.substr(0, text.find('\n')));
  }
  return stack.at(0).toTensor().to(torch::kDouble);
}

std::string state_of(at::Generator generator) {
  const Tensor state = generator.get_state();
  return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
}

/// Each operator is a step of its own, on values of the first stage and of the last one.
TEST(PipelineRandomChild, OperatorsDrawAsOnOneDevice) {
  const char* kind = std::getenv("OSLO_TEST_SCHEDULE");
  if (kind == nullptr) GTEST_SKIP() << "started by the test below, as a rank";
  const bool several = pipeline::default_chunks(kind) > 1;
  const auto make = [] {
    torch::manual_seed(3);
    Net net;
    net->to(torch::kDouble);
    return net;
  };
  struct Draw {
    c10::OperatorHandle op;
    bool own;  ///< from a generator of the program's
    std::string name() const { return toString(op.operator_name()) + (own ? " own" : ""); }
  };
  std::vector<Draw> draws;
  for (const auto& op : operators_that_draw()) {
    if (left_out(op)) continue;
    draws.push_back({op, false});
    const auto& arguments = op.schema().arguments();
    const bool takes = std::any_of(arguments.begin(), arguments.end(),
                                   [](const auto& each) { return each.name() == "generator"; });
    if (takes && !several) draws.push_back({op, true});
  }
  ASSERT_GT(draws.size(), 50);
  at::Generator own = at::detail::createCPUGenerator(17);
  const auto loss = [&](Net& net, const Draw& draw, const Tensors& micro) {
    const auto generator = draw.own ? std::optional(own) : std::nullopt;
    Tensor h = net->layers[0](micro[0]);
    const Tensor first = drawn_by(draw.op, h, generator);
    h = torch::dropout(torch::tanh(net->layers[1](h)), 0.3, true) * (1 + first.mean());
    h = net->layers[3](net->layers[2](h));
    const Tensor last = drawn_by(draw.op, h, generator);
    return torch::mse_loss(h * torch::rand_like(h), micro[1]) + last.mean();
  };
  struct Numbers {
    std::string name;
    double loss;
    std::string state;
  };
  using Step = std::function<double(const Draw&, const Tensors&)>;
  const auto run = [&](const Step& step) {
    std::vector<Numbers> found;
    for (const Draw& draw : draws) {
      torch::manual_seed(5);
      own = at::detail::createCPUGenerator(17);
      const auto numbers = torch::TensorOptions(torch::kDouble);
      const double value =
          step(draw, {torch::randn({8, 5}, numbers), torch::randn({8, 5}, numbers)});
      found.push_back(
          {draw.name(), value, state_of(at::detail::getDefaultCPUGenerator()) + state_of(own)});
    }
    return found;
  };
  const auto scheduled = [&](const InitializeOptions& how, const std::string& config, bool bare) {
    Net net = make();
    const ParallelModel parallel = initialize(net, Config::parse(config), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicroBatches));
    return run([&](const Draw& draw, const Tensors& batch) {
      if (bare) {
        const torch::NoGradGuard no_grad;
        return oslo::full_tensor(loss(net, draw, batch)).item<double>();
      }
      return schedule
          .forward_backward_step(batch,
                                 [&](const Tensors& micro) { return loss(net, draw, micro); })
          .loss.item<double>();
    });
  };
  for (const bool bare : {false, true}) {
    InitializeOptions alone;
    alone.world = World::alone();
    std::vector<Numbers> expected;
    if (several && !bare) {
      expected = scheduled(alone, pipeline_parity::config_of({1, 1, 1}, kind), bare);
    } else {
      Net plain = make();
      expected = run([&](const Draw& draw, const Tensors& batch) {
        const torch::AutoGradMode records(!bare);
        double sum = 0;
        const int parts = bare ? 1 : kMicroBatches;
        for (const Tensors& micro : pipeline_parity::divided(batch, parts)) {
          const Tensor part = loss(plain, draw, micro) / parts;
          sum += part.item<double>();
        }
        return sum;
      });
    }
    const auto actual = scheduled({}, std::getenv("OSLO_TEST_CONFIG"), bare);
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool same = expected[i].state == actual[i].state;
      EXPECT_TRUE(same) << actual[i].name << (bare ? " bare" : "") << ": another state";
      const double size = std::max(1.0, std::abs(expected[i].loss));
      EXPECT_NEAR(actual[i].loss, expected[i].loss, 1e-9 * size)
          << actual[i].name << (bare ? " bare" : "");
    }
  }
  if (!HasFailure()) std::printf("%s\n", kSame);
}

/// The rows of what goes from layer to layer are cut, too.
constexpr const char* kSequencePlan = R"(, "plan": {"layer0": "column", "layer1": "row scatter=-2",
    "layer2": "column", "layer3": "row scatter=-2"})";

struct RandomCase {
  int tensor, pipeline;
  const char* kind;
  const char* plan = "";
};

/// Ranks that ran the child test of this name say that all is as on one device.
void expect_same_on_ranks(const RandomCase& of, const std::string& child) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::string config = pipeline_parity::config_of({1, of.tensor, of.pipeline}, of.kind);
  config.insert(config.size() - 1, of.plan);
  SCOPED_TRACE(of.kind + config);
  ::setenv("OSLO_TEST_SCHEDULE", of.kind, 1);
  ::setenv("OSLO_TEST_CONFIG", config.c_str(), 1);
  const int size = of.tensor * of.pipeline;
  ToolProcess tool({"run", "-n", std::to_string(size), "--", self,
                    "--gtest_filter=PipelineRandomChild." + child});
  ::unsetenv("OSLO_TEST_SCHEDULE");
  ::unsetenv("OSLO_TEST_CONFIG");
  const int code = tool.finish();
  const std::string out = tool.output();
  EXPECT_EQ(code, 0) << out << tool.error();
  int ranks = 0;
  for (size_t at = out.find(kSame); at != std::string::npos; at = out.find(kSame, at + 1)) ++ranks;
  EXPECT_EQ(ranks, size) << out;
}

TEST(PipelineRandom, DropoutIsThatOfOneDevice) {
  std::vector<RandomCase> cases{
      {2, 2, "1f1b"}, {2, 1, "1f1b", kSequencePlan}, {2, 2, "gpipe", kSequencePlan}, {2, 2, "zbv"}};
  const std::vector<std::string> kinds = pipeline::schedule_kinds();
  for (const std::string& kind : kinds) cases.push_back({1, 2, kind.c_str()});
  for (const RandomCase& each : cases) expect_same_on_ranks(each, "DrawsAsOneDevice");
}

TEST(PipelineRandom, EveryOperatorThatDrawsLeavesAllGeneratorsWhereThatOfOneDeviceIs) {
  for (const RandomCase& each :
       {RandomCase{1, 2, "1f1b"}, {1, 3, "zero_bubble"}, {2, 2, "gpipe"}, {1, 2, "zbv"}}) {
    expect_same_on_ranks(each, "OperatorsDrawAsOnOneDevice");
  }
}

}  // namespace
}  // namespace oslo::test
