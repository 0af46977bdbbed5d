#include <stdexcept>

#include "tests/model_lifetime_test/scene.h"

namespace oslo::lifetime_test {
namespace {

void pipeline_step(const Scene& scene, const std::string& kind, bool fails = false) {
  Net model = scene.net();
  torch::optim::AdamW optimizer(model->parameters());
  auto parallel = scene.parallel(model);
  PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4).kind(kind));
  const auto run = [&] {
    schedule.forward_backward_step({ids(), ids()}, [&](const std::vector<Tensor>& micro) {
      const Tensor logits = model->forward(micro[0]);
      if (fails) throw std::runtime_error("a forward that fails");
      return loss_of(logits, micro[1]);
    });
  };
  if (fails) return throw_in(run);
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    run();
    parallel.clip_grad_norm_(1.0);
    optimizer.step();
  }
}

}  // namespace

void add_pipelines(Uses& uses) {
  add(uses, "an evaluation over stages",
      [](const Scene& scene) {
        Net model = scene.net();
        const auto parallel = scene.parallel(model);
        const torch::NoGradGuard no_grad;
        model->eval();
        full_tensor(model->forward(ids()));
      },
      {1, 1, 2});
  for (const std::string& kind : pipeline::schedule_kinds()) {
    const auto settings = stages_of(kind);
    for (const bool fails : {false, true}) {
      add(
          uses, kind + (fails ? ", a forward that throws" : ""),
          [kind, fails](const Scene& scene) { pipeline_step(scene, kind, fails); }, {1, 1, 2},
          settings);
    }
    add(
        uses, kind + " x tensor", [kind](const Scene& scene) { pipeline_step(scene, kind); },
        {1, 2, 2}, settings);
  }
}

}  // namespace oslo::lifetime_test
