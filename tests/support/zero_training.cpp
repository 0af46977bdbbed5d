#include "tests/support/zero_training.h"

#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "oslo_cpp/zero/zero_optimizer.h"
#include "parallelizers/data/zero/state_shares.h"
#include "parallelizers/stages/model_layers.h"
#include "tests/support/own_draws.h"

namespace catalogue {
namespace {

using torch::Tensor;
using torch::optim::Adam;
using Named = std::map<std::string, Tensor>;

constexpr int kRanks = 2, kSteps = 10;

torch::optim::AdamOptions adam() {
  return torch::optim::AdamOptions(1e-3);
}

/// LibTorch lists a module that two others have twice.
Tensors each_once(const Tensors& tensors) {
  Tensors once;
  for (const Tensor& each : tensors) {
    if (std::none_of(once.begin(), once.end(),
                     [&](const Tensor& other) { return other.is_same(each); })) {
      once.push_back(each);
    }
  }
  return once;
}

Batch rows_of(const Batch& batch, int replica) {
  Batch own;
  for (const Tensor& input : batch.inputs) {
    own.inputs.push_back(input.tensor_split(kRanks)[replica]);
  }
  own.target = batch.target.tensor_split(kRanks)[replica];
  return own;
}

std::shared_ptr<torch::nn::Module> made(const Entry& entry, const ZeroTraining& how) {
  return how.dtype ? make_model(entry, *how.dtype) : oslo::test::make_seeded(7, entry.make);
}

Batch drawn(const Entry& entry, int number, const ZeroTraining& how) {
  if (how.dtype) return make_batch(entry, number, *how.dtype);
  return oslo::test::make_seeded(100 + number, [&] { return entry.batch(number); });
}

/// Each replica draws other numbers.
uint64_t seed_of(int step, int replica) {
  return 50 + 2 * step + replica;
}

/// Data parallelism by hand.
struct Replicas {
  Replicas(const Entry& entry, const ZeroTraining& how);

  std::vector<std::vector<Batch>>
      batches;  ///< of each step, by replica; drawn before ranks, who share LibTorch's generator
  std::vector<std::vector<Tensor>> losses;
  std::vector<Named> gradients, weights;  ///< of each step; no gradient: undefined
  bool leaves_out = false;                ///< a replica gave a parameter no gradient
};

Named copies_of(const torch::nn::Module& model, bool gradients) {
  Named copies;
  for (const auto& item : model.named_parameters()) {
    const Tensor& of = gradients ? item.value().grad() : item.value();
    copies[item.key()] = of.defined() ? of.detach().clone() : Tensor();
  }
  return copies;
}

/// Halves are added up, as DistributedDataParallel does; a missing one is zeros.
Tensor mean_of(const Tensor& one, const Tensor& other) {
  if (!one.defined() && !other.defined()) return {};
  if (!one.defined()) return other / kRanks;
  return other.defined() ? one / kRanks + other / kRanks : one / kRanks;
}

Replicas::Replicas(const Entry& entry, const ZeroTraining& how) {
  const auto first = made(entry, how), second = made(entry, how);
  const std::vector<torch::nn::Module*> models{first.get(), second.get()};
  Adam one(each_once(first->parameters()), adam()), other(each_once(second->parameters()), adam());
  for (int step = 0; step < kSteps; ++step) {
    batches.emplace_back();
    for (int replica = 0; replica < kRanks; ++replica) {
      batches.back().push_back(how.fixed_size ? drawn(entry, kRanks * step + replica, how)
                                              : rows_of(drawn(entry, step, how), replica));
    }
    {
      const torch::NoGradGuard no_grad;
      std::vector<Tensor> theirs = second->buffers();
      const std::vector<Tensor> ours = first->buffers();
      for (size_t i = 0; i < ours.size(); ++i) theirs[i].copy_(ours[i]);
    }
    one.zero_grad();
    other.zero_grad();
    losses.emplace_back();
    for (int replica = 0; replica < kRanks; ++replica) {
      const oslo::test::OwnDraws draws(seed_of(step, replica));
      const Batch& own = batches.back()[replica];
      const Tensor loss = entry.loss(entry.forward(*models[replica], own.inputs), own);
      loss.backward();
      losses.back().push_back(loss.detach());
    }
    for (const auto& model : {first, second}) {
      for (const oslo::NamedTensor& each : oslo::ModelView(model).in_use()) {
        leaves_out |= !each.computed && !each.tensor.grad().defined();
      }
    }
    const auto ours = first->parameters(), theirs = second->parameters();
    for (size_t i = 0; i < ours.size(); ++i) {
      const Tensor mean = mean_of(ours[i].grad(), theirs[i].grad());
      ours[i].mutable_grad() = mean;
      theirs[i].mutable_grad() = mean.defined() ? mean.clone() : Tensor();
    }
    gradients.push_back(copies_of(*first, true));
    one.step();
    other.step();
    weights.push_back(copies_of(*first, false));
  }
}

/// What one rank gets of a collective.
struct Moved {
  int64_t calls = 0, elements = 0;
};

/// A stage, and at stage 3 whether weights are gathered.
struct ZeroWay {
  int stage;
  bool gathers = false;

  std::string config() const {
    return c10::str(R"({"zero_optimization": {"enabled": true, "stage": )", stage,
                    gathers ? R"(, "copies_per_host": 0}})" : "}}");
  }
};

/// One rank's run.
class ZeroRun {
 public:
  ZeroRun(const Entry& entry, const ZeroWay& way, const ZeroTraining& how, const Replicas& expected,
          const oslo::World& world)
      : entry_(entry), way_(way), how_(how), expected_(expected), rank_(world.rank()) {
    model_ = made(entry, how);
    for (const oslo::NamedTensor& each : oslo::ModelView(model_).in_use()) {
      if (each.computed) continue;
      (each.tensor.dim() == 0 ? numbers_ : trained_).push_back(each.tensor);
      if (each.tensor.dim() > 0) layers_[layer_of(each.name)].push_back(trained_.size() - 1);
      if (each.tensor.dim() > 0) wholes_.push_back(each.tensor.numel());
    }
    oslo::InitializeOptions options;
    options.world = world;
    parallel_.emplace(oslo::initialize(model_, oslo::Config::parse(way.config()), options));
    if (way.stage == 3) {
      optimizer_ = std::make_unique<Adam>(each_once(model_->parameters()), adam());
    } else {
      optimizer_ = std::make_unique<oslo::ZeroOptimizer<Adam>>(*parallel_, adam());
    }
    ddp_.emplace(std::make_shared<ForwardOf>(entry, model_), parallel_->mpu().data_group(),
                 oslo::DDPOptions().find_unused_parameters(expected.leaves_out));
  }

  void train() {
    oslo::Ledger& ledger = parallel_->mpu().data_group()->ledger();
    for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const oslo::test::OwnDraws draws(seed_of(step, rank_));
      const Batch& own = expected_.batches[step][rank_];
      optimizer_->zero_grad();
      ledger.clear();
      const Tensor loss = entry_.loss(ddp_->forward(own.inputs), own);
      expect_moved(ledger, "all_gather", in_forward(), "forward");
      ledger.clear();
      loss.backward();
      expect_backward(ledger);
      EXPECT_TRUE(torch::equal(loss.detach(), expected_.losses[step][rank_]))
          << loss.item<double>() << " beside " << expected_.losses[step][rank_].item<double>();
      expect_equal(expected_.gradients[step], true);
      ledger.clear();
      optimizer_->step();
      // At first ranks compare what they step.
      if (step > 0) {
        expect_moved(ledger, "all_gather", in_step(), "step");
        EXPECT_EQ(ledger.total().calls, in_step().calls);
      }
      expect_equal(expected_.weights[step], false);
    }
  }

 private:
  void expect_moved(const oslo::Ledger& ledger, const char* operation, const Moved& expected,
                    const char* when) const {
    const oslo::Traffic seen = ledger.total(operation);
    EXPECT_EQ(seen.calls, expected.calls) << operation << ", " << when;
    EXPECT_EQ(seen.elements, expected.elements) << operation << ", " << when;
    EXPECT_EQ(seen.bytes, expected.elements * trained_[0].element_size())
        << operation << ", " << when;
  }

  std::string layer_of(const std::string& parameter) const {
    for (const std::string& path : oslo::pipeline_layers(oslo::ModelView(model_))) {
      if (oslo::lies_in(parameter, path)) return path;
    }
    return "";
  }

  /// Of the parameters with dimensions, by rank.
  std::vector<int64_t> shared_out() const {
    const Tensors& stepped = optimizer_->param_groups()[0].params();
    const auto rows = oslo::RowSharing(oslo::ShareUnit::rows, kRanks).share(stepped);
    std::vector<int64_t> elements(kRanks, 0);
    for (size_t i = 0; i < stepped.size(); ++i) {
      const auto of_ranks = oslo::elements_of_ranks(stepped[i], rows[i], kRanks);
      for (int rank = 0; stepped[i].dim() > 0 && rank < kRanks; ++rank) {
        elements[rank] += of_ranks[rank];
      }
    }
    return elements;
  }

  /// What others have of one layer's weights.
  int64_t elsewhere(const std::vector<size_t>& layer) const {
    int64_t elements = 0;
    for (const size_t i : layer) elements += wholes_[i] - trained_[i].numel();
    return elements;
  }

  /// What lies outside of layers is one of them.
  Moved gathered(const std::function<bool(const std::string&)>& which) const {
    Moved moved;
    for (const auto& [name, layer] : layers_) {
      if (!way_.gathers || !which(name)) continue;
      moved.calls += 1;
      moved.elements += elsewhere(layer) + (kRanks - 1);  // and by which ranks know the layer
    }
    return moved;
  }

  Moved in_forward() const {
    return and_again(gathered([](const std::string&) { return true; }));
  }

  Moved in_backward() const {
    return and_again(gathered(
        [&](const std::string& layer) { return std::ranges::count(how_.unread, layer) == 0; }));
  }

  Moved and_again(Moved moved) const {
    const Moved again =
        gathered([&](const std::string& layer) { return std::ranges::count(how_.again, layer); });
    return {moved.calls + again.calls, moved.elements + again.elements};
  }

  void expect_backward(const oslo::Ledger& ledger) const {
    const auto flags = static_cast<int64_t>(trained_.size());
    Moved reduced;
    if (way_.gathers) {
      expect_moved(ledger, "all_gather", in_backward(), "backward");
      // One element a weight says who used it, eleven which layer it is.
      int64_t parts = 0;
      for (const Tensor& each : trained_) parts += each.numel();
      const auto layers = static_cast<int64_t>(layers_.size());
      reduced = {layers, (parts + flags + 11 * layers) * (kRanks - 1)};
    } else if (way_.stage != 3) {
      // One bucket, as no model is larger than the first one.
      const int64_t asked = expected_.leaves_out ? flags : 0;
      reduced = {1, (shared_out()[rank_] + asked) * (kRanks - 1)};
    }
    expect_moved(ledger, "reduce_scatter", reduced, "backward");
    const oslo::Traffic numbers = ledger.total("all_reduce");
    // With one copy of the weights they are left beside the other gradients.
    const bool left = way_.stage == 3 && !way_.gathers;
    EXPECT_EQ(numbers.calls > 0, !left && !numbers_.empty());
    EXPECT_EQ(ledger.total().calls, reduced.calls + numbers.calls + in_backward().calls);
  }

  Moved in_step() const {
    if (way_.stage == 3) return {};
    // Numbers are one rank's, who sends them to the other.
    const Tensors& stepped = optimizer_->param_groups()[0].params();
    const auto rows = oslo::RowSharing(oslo::ShareUnit::rows, kRanks).share(stepped);
    int64_t theirs = 0;
    for (size_t i = 0; i < stepped.size(); ++i) {
      theirs += oslo::elements_of_ranks(stepped[i], rows[i], kRanks)[1 - rank_];
    }
    return {1, theirs};
  }

  void expect_equal(const Named& expected, bool gradients) const {
    for (const auto& item : model_->named_parameters()) {
      const Tensor& of = gradients ? item.value().grad() : item.value();
      const Tensor& one = expected.at(item.key());
      const char* const what = gradients ? "gradient of " : "weight ";
      ASSERT_EQ(of.defined(), one.defined()) << what << item.key();
      if (!of.defined()) continue;
      const Tensor whole = oslo::full_tensor(of.detach());
      EXPECT_TRUE(torch::equal(whole, one))
          << what << item.key() << " differs by " << (whole - one).abs().max().item<double>();
    }
  }

  const Entry& entry_;
  const ZeroWay way_;
  const ZeroTraining& how_;
  const Replicas& expected_;
  const int rank_;
  std::shared_ptr<torch::nn::Module> model_;
  Tensors trained_, numbers_;  ///< what the model computes with: with dimensions, and without
  std::vector<int64_t> wholes_;
  std::map<std::string, std::vector<size_t>> layers_;
  std::optional<oslo::ParallelModel> parallel_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<oslo::DistributedDataParallel<ForwardOf>> ddp_;
};

}  // namespace

void expect_zero(const Entry& entry, int stage, const ZeroTraining& how) {
  at::set_num_threads(1);
  const Replicas expected(entry, how);
  std::vector<ZeroWay> ways{{stage}};
  if (stage == 3) ways.push_back({stage, /*gathers=*/true});
  for (const ZeroWay& way : ways) {
    SCOPED_TRACE(way.config());
    oslo::run_as_threads(kRanks, [&](const oslo::World& world) {
      at::set_num_threads(1);
      ZeroRun(entry, way, how, expected, world).train();
    });
  }
}

}  // namespace catalogue
