#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <atomic>
#include <optional>

#include "tests/gallery_test/exhibit.h"
#include "tests/support/catalogue_entry.h"
#include "tests/support/seeded.h"
#include "tests/support/spread.h"

namespace gallery {
namespace {

using Numbers = std::map<std::string, Tensor>;

/// What one step came to, by the names of `Right`.
struct Step {
  Numbers numbers, notes;
};

constexpr int kMicroBatches = 2;

std::shared_ptr<Program> make_program(const Exhibit& exhibit) {
  auto program = oslo::test::make_seeded(7, exhibit.make);
  for (auto tensors : {program->parameters(), program->buffers()}) {
    for (Tensor& tensor : tensors) {
      tensor.set_data(catalogue::floating_to(tensor.detach(), exhibit.dtype));
    }
  }
  return program;
}

Tensors make_batch(const Exhibit& exhibit, int step) {
  Tensors batch = oslo::test::make_seeded(100 + step, [&] { return exhibit.batch(step); });
  for (Tensor& tensor : batch) tensor = catalogue::floating_to(tensor, exhibit.dtype);
  return batch;
}

Numbers joined(const std::map<std::string, Tensors>& notes) {
  Numbers found;
  for (const auto& [name, results] : notes) found[name] = torch::cat(results);
  return found;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Exhibit& exhibit,
                                                        const Tensors& parameters) {
  return pipeline_parity::make_optimizer(exhibit.sgd, parameters);
}

int micro_batches_of(const Layout& layout) {
  return layout.pipeline > 1 ? kMicroBatches : 1;
}

void add_logged(const Program& program, Step& step) {
  for (const auto& [name, value] : program.logged) {
    step.numbers[name] = torch::scalar_tensor(value, torch::kDouble);
  }
}

/// The program as its author runs it.
std::vector<Step> on_one_device(const Exhibit& exhibit, const Layout& layout) {
  const auto program = make_program(exhibit);
  const auto optimizer = make_optimizer(exhibit, program->parameters());
  const int parts = exhibit.by_parts ? layout.data * micro_batches_of(layout) : 1;
  program->parts = parts;
  std::vector<Step> steps;
  for (int i = 0; i < exhibit.steps; ++i) {
    const Tensors batch = make_batch(exhibit, i);
    optimizer->zero_grad();
    program->notes.clear();
    program->look_at(batch);
    Step& step = steps.emplace_back();
    Tensor sum;
    for (const Tensors& part : pipeline_parity::divided(batch, parts)) {
      const Tensor loss = program->loss(part) / parts;
      (loss * program->scale).backward();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    step.numbers["loss"] = sum;
    for (const auto& item : program->named_parameters()) {
      if (!item.value().grad().defined()) continue;
      step.numbers["gradient of " + item.key()] = item.value().grad().clone();
    }
    if (program->after_backward()) {
      step.numbers["norm"] = torch::scalar_tensor(
          torch::nn::utils::clip_grad_norm_(program->parameters(), exhibit.clip), torch::kDouble);
      optimizer->step();
    }
    add_logged(*program, step);
    for (const auto& item : program->named_parameters()) {
      step.numbers["weight " + item.key()] = item.value().detach().clone();
    }
    step.notes = joined(program->notes);
  }
  return steps;
}

void expect_equal(const Tensor& actual, const Tensor& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) return;
  const Tensor right = expected.to(torch::kDouble), is_finite = torch::isfinite(right);
  const Tensor mine = actual.to(torch::kDouble);
  EXPECT_TRUE(torch::equal(torch::isfinite(mine), is_finite)) << what << " is finite elsewhere";
  const Tensor finite = right.masked_fill(~is_finite, 0);
  const double difference = (mine.masked_fill(~is_finite, 0) - finite).abs().max().item<double>();
  EXPECT_LE(difference, tolerance * std::max(finite.abs().max().item<double>(), 1e-3)) << what;
}

/// Of one device, with which ours is compared.
void expect_right_numbers(const Exhibit& exhibit, const std::vector<Step>& steps) {
  for (const Right& right : exhibit.right) {
    Numbers known = steps.at(right.step).numbers;
    known.insert(steps[right.step].notes.begin(), steps[right.step].notes.end());
    ASSERT_TRUE(known.count(right.of)) << right.of << " is nothing that the program has";
    expect_equal(known[right.of], right.value, 1e-4, right.of);
  }
}

std::string config_of(const Exhibit& exhibit, const Layout& layout) {
  std::string config =
      layout.config.empty()
          ? catalogue::spread(*make_program(exhibit), {layout.data, layout.tensor, layout.pipeline})
          : layout.config;
  const auto add = [&](const std::string& more) { config.insert(config.size() - 1, more); };
  if (!exhibit.plan.empty()) add(R"(, "plan": )" + exhibit.plan);
  if (layout.zero > 0) {
    add(c10::str(R"(, "zero_optimization": {"enabled": true, "stage": )", layout.zero, "}"));
  }
  return config;
}

/// The same on this rank of several.
class Run {
 public:
  Run(const Exhibit& exhibit, const Layout& layout, const oslo::World& world)
      : exhibit_(exhibit),
        layout_(layout),
        program_(make_program(exhibit)),
        optimizer_(make_optimizer(exhibit, program_->parameters())),
        parallel_(initialized(world)),
        group_(parallel_.mpu().get_data_parallel_group()) {
    if (layout.zero == 1 || layout.zero == 2) {
      optimizer_ = pipeline_parity::make_sharing_optimizer(exhibit.sgd, parallel_);
    }
    program_->parts = layout.data * micro_batches_of(layout);
    if (layout.pipeline > 1) {
      schedule_.emplace(parallel_,
                        oslo::PipelineOptions().num_microbatches(kMicroBatches).kind(layout.kind));
    } else {
      oslo::DDPOptions options;
      options.find_unused_parameters(exhibit.skips_layers);
      ddp_.emplace(program_, group_, options);
    }
  }

  Step step(int i) {
    const Tensors batch = make_batch(exhibit_, i);
    optimizer_->zero_grad();
    program_->notes.clear();
    program_->look_at(batch);
    Step step;
    step.numbers["loss"] = averaged(trained(own(batch)));
    for (const auto& item : program_->named_parameters()) {
      const Tensor& gradient = item.value().grad();
      if (!gradient.defined()) continue;
      step.numbers["gradient of " + item.key()] = pipeline_parity::whole_here(gradient).clone();
    }
    if (program_->after_backward()) {
      if (!schedule_) {  // LibTorch's own gives the same where there are no stages
        step.numbers["norm"] = torch::scalar_tensor(
            torch::nn::utils::clip_grad_norm_(program_->parameters(), 1e30), torch::kDouble);
      }
      const double norm = parallel_.clip_grad_norm_(exhibit_.clip);
      if (schedule_) step.numbers["norm"] = torch::scalar_tensor(norm, torch::kDouble);
      optimizer_->step();
    }
    add_logged(*program_, step);
    for (const auto& item : program_->named_parameters()) {
      if (!oslo::is_here(item.value())) continue;
      step.numbers["weight " + item.key()] = pipeline_parity::whole_here(item.value()).clone();
    }
    std::map<std::string, Tensors> here;
    for (const auto& [name, results] : program_->notes) {
      for (const Tensor& result : results) {
        if (oslo::is_here(result)) here[name].push_back(pipeline_parity::whole_here(result));
      }
    }
    step.notes = joined(here);
    return step;
  }

  /// This replica's rows.
  Tensor own(const Tensor& rows) const {
    const oslo::MPU& mpu = parallel_.mpu();
    return rows.tensor_split(mpu.get_data_parallel_world_size(), 0)[mpu.get_data_parallel_rank()];
  }

  const oslo::ParallelModel& parallel() const { return parallel_; }

 private:
  oslo::ParallelModel initialized(const oslo::World& world) {
    oslo::InitializeOptions how;
    how.world = world;
    how.cut_own_parameters = true;
    const Tensors batch = make_batch(exhibit_, 0);
    how.example_inputs = [this, batch] {
      program_->look_at(batch);
      program_->loss(batch);
    };
    return oslo::initialize(std::shared_ptr<torch::nn::Module>(program_),
                            oslo::Config::parse(config_of(exhibit_, layout_)), how);
  }

  Tensors own(const Tensors& batch) const {
    Tensors part;
    for (const Tensor& tensor : batch) part.push_back(own(tensor));
    return part;
  }

  Tensor trained(const Tensors& batch) {
    if (schedule_) {
      const auto loss = [this](const Tensors& micro) { return program_->loss(micro); };
      return schedule_->forward_backward_step(batch, loss).loss;
    }
    Tensor loss;
    parallel_.count([&] {
      loss = ddp_->forward(batch);
      (loss * program_->scale).backward();
    });
    return oslo::full_tensor(loss.detach());
  }

  /// A loss that is logged: every rank of a replica has it, so it is averaged over replicas alone.
  Tensor averaged(const Tensor& loss) const {
    std::vector<Tensor> sum{loss.clone()};
    group_->allreduce(sum)->wait();
    return sum[0] / parallel_.mpu().get_data_parallel_world_size();
  }

  const Exhibit& exhibit_;
  const Layout layout_;
  std::shared_ptr<Program> program_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  oslo::ParallelModel parallel_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::optional<oslo::PipelineSchedule> schedule_;
  std::optional<oslo::DistributedDataParallel<Program>> ddp_;
};

/// On ranks that hold the same parameter its copies are equal bit for bit.
void expect_equal_copies(const std::vector<std::vector<Step>>& of_ranks) {
  for (size_t i = 0; i < of_ranks[0].size(); ++i) {
    std::map<std::string, Tensor> first;
    for (const auto& steps : of_ranks) {
      for (const auto& [name, value] : steps[i].numbers) {
        if (name.rfind("weight ", 0) != 0) continue;
        const auto [seen, is_new] = first.emplace(name, value);
        EXPECT_TRUE(is_new || torch::equal(seen->second, value))
            << name << " differs between ranks after step " << i;
      }
    }
  }
}

void expect_steps(const Exhibit& exhibit, const Layout& layout,
                  const std::vector<Step>& reference) {
  std::vector<std::vector<Step>> of_ranks(layout.size());
  std::atomic<int> gradients = 0;
  oslo::run_as_threads(layout.size(), [&](oslo::World world) {
    at::set_num_threads(1);
    Run run(exhibit, layout, world);
    for (int i = 0; i < exhibit.steps; ++i) {
      const Step mine = of_ranks[world.rank()].emplace_back(run.step(i));
      const std::string when = c10::str("rank ", world.rank(), ", step ", i, ": ");
      for (const auto& [name, value] : mine.numbers) {
        const auto expected = reference[i].numbers.find(name);
        const bool known = expected != reference[i].numbers.end();
        // A gradient that one device does not have may be zeros.
        const Tensor whole = known ? expected->second : torch::zeros_like(value);
        const bool adam = !exhibit.sgd && name.rfind("weight ", 0) == 0;
        expect_equal(value, whole, exhibit.tolerance * (adam ? 100 : 1), when + name);
        gradients += name.rfind("gradient ", 0) == 0;
      }
      for (const auto& [name, value] : mine.notes) {
        expect_equal(value, run.own(reference[i].notes.at(name)), exhibit.tolerance, when + name);
      }
    }
    if (exhibit.gathers_nothing && layout.pipeline == 1) {
      EXPECT_TRUE(run.parallel().plan().gathers.empty()) << run.parallel().plan().to_string();
    }
  });
  EXPECT_GT(gradients, 0) << "nothing was compared";
  expect_equal_copies(of_ranks);
}

}  // namespace

void expect_right(const Exhibit& exhibit, const Layout& layout) {
  const std::vector<Step> reference = on_one_device(exhibit, layout);
  expect_right_numbers(exhibit, reference);
  try {
    expect_steps(exhibit, layout, reference);
  } catch (const oslo::Error& error) {
    const std::string message = error.what();
    const bool is_later = message.find("is not there yet") != std::string::npos;
    if (layout.config.empty() || !is_later) throw;
    GTEST_SKIP() << message;
  }
}

}  // namespace gallery
