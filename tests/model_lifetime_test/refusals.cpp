// What a rank alone is refused before it has sent anything: as the error leaves the function that
// holds the model, the others hear of it, not when the time limit is over. The rank lives on.
#include <gmock/gmock.h>

#include <latch>
#include <stdexcept>

#include "tests/model_lifetime_test/scene.h"

namespace oslo::lifetime_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Tensors = std::vector<Tensor>;

/// `run` goes on for as long as all ranks do; `wrong()` says when this one is to do what is
/// refused.
struct Refusal {
  std::string name;
  std::function<void(const Scene&, const std::function<bool()>& wrong)> run;
  std::string says;
  Grid grid = {1, 1, 2};
  std::vector<std::string> settings = {};
};

using Loss = std::function<Tensor(Net& model, const Tensors& micro)>;

Tensor right_loss(Net& model, const Tensors& micro) {
  return loss_of(model->forward(micro[0]), micro[1]);
}

/// What a rank gives to a step of a schedule.
struct Step {
  Tensors batch{ids(), ids()};
  StepOptions options;
  bool records = true;
  Loss loss = right_loss;
};

void add_step(std::vector<Refusal>& all, const std::string& name, const std::string& says,
              const std::function<void(Step&)>& spoil) {
  for (const std::string kind : {"1f1b", "zbv"}) {
    const auto run = [kind, spoil](const Scene& scene, const auto& wrong) {
      Net model = scene.net();
      auto parallel = scene.parallel(model);
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4).kind(kind));
      while (true) {
        Step step;
        if (wrong()) spoil(step);
        const torch::AutoGradMode records(step.records);
        schedule.forward_backward_step(
            step.batch, [&](const Tensors& micro) { return step.loss(model, micro); },
            step.options);
      }
    };
    all.push_back({kind + ": " + name, run, says, {1, 1, 2}, stages_of(kind)});
  }
}

void add_steps(std::vector<Refusal>& all) {
  add_step(all, "no batch", "the batch has no tensors", [](Step& step) { step.batch.clear(); });
  add_step(all, "no rows", "the batch has no rows", [](Step& step) {
    for (Tensor& tensor : step.batch) tensor = tensor.slice(0, 0, 0);
  });
  add_step(all, "tensors of different lengths", "has 5 rows",
           [](Step& step) { step.batch[1] = step.batch[1].slice(0, 0, 5); });
  add_step(all, "a number in the batch", "no dimension 0",
           [](Step& step) { step.batch[1] = torch::ones({}); });
  add_step(all, "a batch that learns", "requires a gradient",
           [](Step& step) { step.batch.push_back(torch::ones({kRows}, torch::requires_grad())); });
  add_step(all, "outputs of a loss function", "a loss function shows no outputs",
           [](Step& step) { step.options.return_outputs(true); });
  add_step(all, "no gradients", "torch::NoGradGuard", [](Step& step) { step.records = false; });
  add_step(all, "a loss function that throws at once", "no more data", [](Step& step) {
    step.loss = [](Net&, const Tensors&) -> Tensor { throw std::runtime_error("no more data"); };
  });
  add_step(all, "a loss function without a loss", "gave no tensor",
           [](Step& step) { step.loss = [](Net&, const Tensors&) { return Tensor(); }; });
  add_step(all, "a loss of the batch alone", "does not depend on the model", [](Step& step) {
    step.loss = [](Net&, const Tensors& micro) { return micro[0].to(torch::kFloat).mean(); };
  });
}

/// Made again and again, with options that are wrong where `wrong()`.
void add_schedules(std::vector<Refusal>& all) {
  const auto add = [&](const std::string& name, const std::string& says,
                       const PipelineOptions& options) {
    all.push_back({name,
                   [options](const Scene& scene, const auto& wrong) {
                     Net model = scene.net();
                     auto parallel = scene.parallel(model);
                     while (true) {
                       PipelineSchedule schedule(
                           parallel, wrong() ? options : PipelineOptions().num_microbatches(4));
                       schedule.forward_backward_step({ids(), ids()}, [&](const Tensors& micro) {
                         return right_loss(model, micro);
                       });
                     }
                   },
                   says});
  };
  add("no micro-batches", "num_microbatches is 0", PipelineOptions().num_microbatches(0));
  add("another kind", "gave 2 stages", PipelineOptions().num_microbatches(4).kind("zbv"));
  add("no kind", "2f2b", PipelineOptions().num_microbatches(4).kind("2f2b"));
}

/// `spoil` throws, or changes what DistributedDataParallel counts on.
void add_data_parallel(std::vector<Refusal>& all) {
  const auto add = [&](const std::string& name, const std::string& says,
                       const std::function<void(Net&)>& spoil) {
    all.push_back({name,
                   [spoil](const Scene& scene, const auto& wrong) {
                     Net model = scene.net();
                     auto parallel = scene.parallel(model);
                     DistributedDataParallel<Net> ddp(model,
                                                      parallel.mpu().get_data_parallel_group());
                     while (true) {
                       if (wrong()) spoil(model);
                       loss_of(ddp.forward(ids()), ids()).backward();
                     }
                   },
                   says,
                   {2, 1, 1}});
  };
  add("data: a layer that was frozen", "frozen after DistributedDataParallel was made",
      [](Net& model) { model->up->weight.requires_grad_(false); });
  add("data: a layer of another type", "became Double", [](Net& model) {
    model->up->weight.set_data(model->up->weight.detach().to(torch::kDouble));
  });
  add("data: a program that throws", "no more data",
      [](Net&) { throw std::runtime_error("no more data"); });
  all.push_back({"data: options",
                 [](const Scene& scene, const auto& wrong) {
                   Net model = scene.net();
                   auto parallel = scene.parallel(model);
                   while (true) {
                     DistributedDataParallel<Net> ddp(model,
                                                      parallel.mpu().get_data_parallel_group(),
                                                      DDPOptions().bucket_cap_mb(wrong() ? 0 : 25));
                     loss_of(ddp.forward(ids()), ids()).backward();
                   }
                 },
                 "bucket_cap_mb is 0",
                 {2, 1, 1}});
}

class OthersAreToldAtOnce : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Of, OthersAreToldAtOnce, ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

TEST_P(OthersAreToldAtOnce, OfWhatOneRankIsRefusedBeforeItSendsAnything) {
  std::vector<Refusal> all;
  add_steps(all);
  add_schedules(all);
  add_data_parallel(all);
  int failing = 0;
  for (const Refusal& refusal : all) {
    for (const bool first : {true, false}) {  // the first step prepares more than later ones
      // Connections take their time: there each refusal comes once.
      if (GetParam() == "gloo" && first != ((&refusal - all.data()) % 2 == 0)) continue;
      SCOPED_TRACE(refusal.name + (first ? ", at once" : ", later"));
      failing = 1 - failing;
      std::latch told(1);
      const auto body = [&](World world) {
        at::set_num_threads(1);
        Watch watch;
        const bool fails = world.rank() == failing;
        std::vector<std::string> settings = refusal.settings;
        settings.push_back("backend=" + GetParam());
        int steps = 0;
        std::string error;
        try {
          refusal.run({world, refusal.grid, settings, watch, false},
                      [&] { return fails && ++steps == (first ? 1 : 3); });
        } catch (const std::exception& thrown) {
          error = thrown.what();
        }
        EXPECT_EQ(watch.left(), 0);
        if (fails) {
          EXPECT_THAT(error, HasSubstr(refusal.says));
          told.wait();  // it lives on
        } else {
          const std::string why =
              GetParam() == "shm" ? c10::str("rank ", failing, " has ") : std::string("failed");
          // What is agreed on says it itself.
          EXPECT_THAT(error,
                      AnyOf(HasSubstr(why), AllOf(HasSubstr(c10::str("rank ", failing, ": ")),
                                                  HasSubstr(refusal.says))));
          EXPECT_THAT(error, AllOf(Not(HasSubstr("waited")), Not(HasSubstr("imed out"))));
          told.count_down();
        }
      };
      run_as_threads(refusal.grid.size(), body, std::chrono::seconds(20));
    }
  }
}

}  // namespace
}  // namespace oslo::lifetime_test
