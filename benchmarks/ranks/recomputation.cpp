// One rank: times forward and backward of a GPT whose blocks are computed again in backward, by
// oslo::checkpoint around each. benchmarks/peers/recomputation.py is the same job in Python, with
// torch.utils.checkpoint; benchmarks/report compares them.
//
//   bench_recomputation --form none          everything is kept
//   bench_recomputation --form whole         every operator of a block runs again
//   bench_recomputation --form needed        those that backward needs (the default of checkpoint)
//   bench_recomputation --form selective     products of matrices and attention are kept
//   bench_recomputation --form half          of these so many that half of the bytes are left
//   bench_recomputation --autocast bfloat16  any of them under LibTorch's autocast
//   bench_recomputation --beside none        steps of another form in turn with its own
//
// Prints one line of JSON: the first loss and gradient, by which the two are known to compute the
// same, the milliseconds of every timed step (with `--beside` also of the other form's, as
// "beside"), and in bytes what forward leaves for backward, what of it the blocks leave, and the
// most that a step took on top of what it found.
#include <ATen/autocast_mode.h>
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "benchmarks/ranks/model.h"
#include "benchmarks/ranks/rank_program.h"
#include "benchmarks/ranks/tensor_memory.h"
#include "benchmarks/ranks/timed_steps.h"

namespace {

struct Options {
  std::string form = "none", beside, autocast;
  int64_t hidden = 256, layers = 4, heads = 4, positions = 64, vocabulary = 512, batch = 2;
  int warm_up = 3, steps = 20;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times forward and backward of a GPT whose blocks are computed again");
  const CLI::IsMember forms({"none", "whole", "needed", "selective", "half"});
  app.add_option("--form", options.form)->check(forms);
  app.add_option("--beside", options.beside)->check(forms);
  app.add_option("--autocast", options.autocast)->check(CLI::IsMember({"bfloat16", "float16"}));
  app.add_option("--hidden", options.hidden);
  app.add_option("--layers", options.layers);
  app.add_option("--batch", options.batch, "Sequences");
  app.add_option("--warm-up", options.warm_up);
  app.add_option("--steps", options.steps);
  bench::parse_or_exit(app, argc, argv);
  return options;
}

/// As LibTorch's documentation has it around forward and loss.
class Autocast {
 public:
  explicit Autocast(const std::string& dtype) : on_(!dtype.empty()) {
    if (!on_) return;
    at::autocast::set_autocast_dtype(at::kCPU, dtype == "float16" ? at::kHalf : at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool on_;
};

void run(const Options& options) {
  at::set_num_threads(1);
  bench::Gpt model(options.vocabulary, options.positions, options.hidden, options.heads,
                   options.layers);
  const auto place = torch::arange(options.batch * options.positions) * 7;
  const auto tokens = place.remainder(options.vocabulary).view({options.batch, options.positions});
  const auto targets = (place + 3).remainder(options.vocabulary);
  // No block's, so that it must not be counted with what blocks leave.
  const auto positions = torch::arange(tokens.size(1), tokens.options());
  const auto forward = [&](const std::string& form,
                           const std::function<void(const torch::Tensor&)>& after_blocks = {}) {
    oslo::CheckpointOptions how;
    how.whole(form == "whole");
    if (form == "selective" || form == "half") how.keep({"matmul", "attention"});
    if (form == "half") how.keep_at_most(0.5);
    const Autocast autocast(options.autocast);
    auto x = model->wte(tokens) + model->wpe(positions);
    for (const auto& each : *model->h) {
      bench::Block block(std::dynamic_pointer_cast<bench::BlockImpl>(each));
      x = form == "none" ? block->forward(x) : oslo::checkpoint(how, block, x);
    }
    if (after_blocks) after_blocks(x);
    const auto logits = torch::matmul(model->lnf(x), model->wte->weight.t());
    return torch::nn::functional::cross_entropy(logits.view({-1, options.vocabulary}), targets);
  };
  const auto step = [&](const std::string& form) {
    model->zero_grad();
    const auto loss = forward(form);
    loss.backward();
    return loss;
  };

  nlohmann::json result;
  result["loss"] = step(options.form).item<double>();
  result["gradient"] = model->wte->weight.grad().abs().sum().item<double>();
  {
    model->zero_grad();
    const auto memory = std::make_shared<bench::TensorMemory>(c10::kCPU);
    const c10::DebugInfoGuard counted(c10::DebugInfoKind::PROFILER_STATE, memory);
    const auto loss = forward(options.form, [&](const torch::Tensor& last) {
      result["kept_by_blocks"] = memory->held() - static_cast<int64_t>(last.nbytes());
    });
    result["kept"] = memory->held();
    loss.backward();
    result["most"] = memory->most();
  }
  const auto timed = [&](const std::string& form, int steps) {
    return bench::timed_steps(
        steps, [] {}, [&] { step(form); });
  };
  timed(options.form, options.warm_up);
  if (options.beside.empty()) {
    result["milliseconds"] = timed(options.form, options.steps);
  } else {
    timed(options.beside, options.warm_up);
    for (int i = 0; i < options.steps; ++i) {
      for (const bool own : {i % 2 == 0, i % 2 != 0}) {
        const double taken = timed(own ? options.form : options.beside, 1)[0];
        result[own ? "milliseconds" : "beside"].push_back(taken);
      }
    }
  }
  std::cout << result << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  return bench::outcome_of([&] { run(options); });
}
