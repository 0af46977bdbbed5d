// How often a weight is cast, and that views of it (`weight.t()`, by which C++'s nn::Linear
// multiplies) read its cast.
#include <ATen/record_function.h>

#include <map>
#include <sstream>
#include <utility>

#include "tests/mixed_precision_test/cases.h"

namespace oslo::test::casts {
namespace {

using torch::Tensor;

/// Casts to half that this thread makes, by the elements of what is cast.
class CountedCasts {
 public:
  CountedCasts() {
    made().clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&count).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedCasts() { at::removeCallback(handle_); }
  CountedCasts(const CountedCasts&) = delete;
  CountedCasts& operator=(const CountedCasts&) = delete;

  /// Since the last call.
  static std::map<int64_t, int> take() { return std::exchange(made(), {}); }

 private:
  static std::map<int64_t, int>& made() {
    static thread_local std::map<int64_t, int> all;
    return all;
  }
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
    if (std::string(call.name()) != "aten::_to_copy") return nullptr;
    const Tensor of = call.inputs()[0].toTensor();
    const auto& type = call.inputs()[1];
    const bool narrows = of.scalar_type() == torch::kFloat && type.isInt() &&
                         type.toScalarType() == torch::kBFloat16;
    if (narrows) ++made()[of.numel()];
    return nullptr;
  }
  at::CallbackHandle handle_;
};

/// Layers whose products take views of their weights; no activation has as many elements as one.
struct NetImpl : torch::nn::Module {
  Tensor forward(Tensor x) {
    x = torch::tanh(up->forward(x));
    const Tensor mixed = std::get<0>(attention->forward(x, x, x));
    x = x + mixed + torch::tanh(x.matmul(square.transpose(0, 1)));  // [5, 2, 12]
    const auto halves = pair.chunk(2);
    x = x.matmul(halves[0].t()) * x.matmul(halves[1].view({9, 12}).t());
    x = x.matmul(columns.narrow(1, 2, 9).t());  // leaves gaps
    return down->forward(down->forward(x) + 1);
  }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(7, 12)),
                    down = register_module("down", torch::nn::Linear(13, 13));
  torch::nn::MultiheadAttention attention =
      register_module("attention", torch::nn::MultiheadAttention(12, 3));
  Tensor square = register_parameter("square", torch::randn({12, 12}) / 3),
         pair = register_parameter("pair", torch::randn({18, 12}) / 3),
         columns = register_parameter("columns", torch::randn({13, 14}) / 3);
};
TORCH_MODULE(Net);

Net make_net() {
  return make_seeded(3, [] { return Net(); });
}

Tensor batch(int step) {
  return torch::sin(torch::arange(5 * 2 * 7) * 0.3 + step).view({5, 2, 7});
}

/// How often a cast of so many elements is made where each weight whose products take views without
/// gaps is cast once.
std::map<int64_t, int> once_each(const Net& net) {
  std::map<int64_t, int> expected;
  for (const Tensor& weight : {net->up->weight, net->down->weight, net->attention->in_proj_weight,
                               net->attention->out_proj->weight, net->square, net->pair}) {
    ++expected[weight.numel()];
  }
  return expected;
}

void expect_casts(const std::map<int64_t, int>& made, const std::map<int64_t, int>& expected) {
  for (const auto& [elements, times] : expected) {
    const auto found = made.find(elements);
    EXPECT_EQ(found == made.end() ? 0 : found->second, times) << "casts of " << elements;
  }
}

enum class Step { sgd, adamw };

void expect_as_guarded(const std::string& more, Step kind, const std::string& recompute = "") {
  run_as_threads(1, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    initialize(net, Config::parse(amp_config(torch::kBFloat16, 1, 1, more + recompute)), in(world));
    const auto make = [&](Net& of) -> std::unique_ptr<torch::optim::Optimizer> {
      if (kind == Step::adamw) return std::make_unique<torch::optim::AdamW>(of->parameters());
      return std::make_unique<torch::optim::SGD>(of->parameters(),
                                                 torch::optim::SGDOptions(0.1).momentum(0.9));
    };
    const auto reference = make(plain), optimizer = make(net);
    for (int step = 0; step < 4; ++step) {
      reference->zero_grad();
      optimizer->zero_grad();
      for (int micro = 0; micro < 3; ++micro) {
        Tensor expected, loss;
        {
          const UnderAutocast guard(torch::kBFloat16);
          expected = plain->forward(batch(3 * step + micro));
          loss = expected.square().mean();
        }
        loss.backward();
        const Tensor output = net->forward(batch(3 * step + micro));
        expect_same(output, expected, "output");
        output.square().mean().backward();
      }
      expect_same_gradients(*net, *plain);
      reference->step();
      optimizer->step();
      expect_same_weights(*net, *plain);
    }
    const torch::NoGradGuard no_grad;
    const Tensor output = net->forward(batch(20));
    const UnderAutocast guard(torch::kBFloat16);
    expect_same(output, plain->forward(batch(20)), "evaluation");
  });
}

TEST(CastsOfViews, GiveTheBitsOfAGuard) {
  for (const char* more : {"", R"("master_weights": true, )"}) {
    for (const Step kind : {Step::sgd, Step::adamw}) {
      for (const char* recompute :
           {"", R"("activation_checkpoint": {"enabled": true}, )",
            R"("activation_checkpoint": {"enabled": true, "keep": ["matmul"]}, )"}) {
        SCOPED_TRACE(c10::str(more, recompute));
        expect_as_guarded(more, kind, recompute);
      }
    }
  }
}

/// What was read before a write is not read behind it, whoever wrote.
TEST(CastsOfViews, FollowWrites) {
  run_as_threads(1, [](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    initialize(net,
               Config::parse(amp_config(torch::kBFloat16, 1, 1, R"("master_weights": true, )")),
               in(world));
    const auto expect_equal = [&](const char* behind) {
      const torch::NoGradGuard no_grad;
      const Tensor output = net->forward(batch(0));
      const UnderAutocast guard(torch::kBFloat16);
      expect_same(output, plain->forward(batch(0)), behind);
    };
    expect_equal("nothing");
    for (Net each : {plain, net}) {
      const torch::NoGradGuard no_grad;
      each->up->weight.mul_(1.5);
    }
    expect_equal("a write");
    for (Net each : {plain, net}) each->up->weight.data().add_(0.25);
    expect_equal("a write through data()");
    const Tensor views[] = {plain->down->weight.t(), net->down->weight.t()};
    for (Tensor view : views) {
      const torch::NoGradGuard no_grad;
      view.add_(0.125);
    }
    expect_equal("a write to a view");
    std::stringstream file;
    torch::save(plain->parameters(), file);
    for (Net each : {plain, net}) {
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : each->parameters()) parameter.zero_();
    }
    expect_equal("zeros");
    std::vector<Tensor> saved;
    torch::load(saved, file);
    for (Net each : {plain, net}) {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < saved.size(); ++i) each->parameters()[i].copy_(saved[i]);
    }
    expect_equal("what was loaded");
  });
}

TEST(CastsOfViews, MasterWeightsAreCastOnceAWrite) {
  for (const int tensor : {1, 2}) {
    run_as_threads(tensor, [&](World world) {
      at::set_num_threads(1);
      Net net = make_net();
      initialize(
          net,
          Config::parse(amp_config(torch::kBFloat16, tensor, 1, R"("master_weights": true, )")),
          in(world));
      torch::optim::AdamW optimizer(net->parameters());
      const CountedCasts counted;
      for (int step = 0; step < 3; ++step) {
        CountedCasts::take();
        for (int micro = 0; micro < 3; ++micro) net->forward(batch(micro)).sum().backward();
        {
          const torch::NoGradGuard no_grad;
          net->forward(batch(7));
        }
        expect_casts(CountedCasts::take(), once_each(net));
        optimizer.step();
      }
    });
  }
}

/// Without copies that are kept, as long as a product has it.
TEST(CastsOfViews, OneForwardSharesACast) {
  run_as_threads(1, [](World world) {
    at::set_num_threads(1);
    Net net = make_net();
    initialize(net, Config::parse(amp_config(torch::kBFloat16)), in(world));
    const CountedCasts counted;
    for (int step = 0; step < 2; ++step) {
      CountedCasts::take();
      net->forward(batch(0)).sum().backward();
      const auto made = CountedCasts::take();
      EXPECT_EQ(made.at(net->down->weight.numel()), 1);
      EXPECT_EQ(made.at(net->pair.numel()), 1);
    }
  });
}

}  // namespace
}  // namespace oslo::test::casts
