#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/history_model.h"
#include "tests/support/training_device.h"
#include "tests/support/under_autocast.h"

// A history's model, optimizer and whatever else a user has in scope, and one training step.
namespace history {

using training::Device;
using Tensors = std::vector<Tensor>;
using Numbers = std::vector<int64_t>;

enum class Rule { sgd, momentum, nesterov, adam, adam_amsgrad, adamw, rmsprop, adagrad, lbfgs };
constexpr int kRules = static_cast<int>(Rule::lbfgs) + 1;

/// How gradients get from one data rank to the others.
enum class Averaging { ddp, own_group, c10d };

struct Setting {
  NetOptions net;
  Rule rule = Rule::sgd;
  bool optimizer_first = false, groups = false, schedule = false, example = true, cut_own = false;
  bool average_model = false;  ///< a second model follows the first
  bool zero = false;           ///< the optimizer is a ZeroOptimizer, which is made last then
  int stage = 0;               ///< of ZeRO, in the config; 0: which says none
  int shards = 0;              ///< so many data ranks have stage 3's weights once; 0: all
  bool one_copy = false;       ///< which lie in memory that they share
  int64_t loss = 0;
  Averaging averaging = Averaging::own_group;
  std::string recomputed;           ///< the value of "activation_checkpoint"; empty: nothing is
  bool fusion = false;              ///< "kernel_fusion"
  std::optional<torch::Dtype> amp;  ///< in fp32 then; one device has a guard around it
};

/// Where a gradient is zero but for rounding (a key's bias under softmax), Adam multiplies the
/// rounding by lr / eps in every step, and weight decay feeds it back: 2e6 with LibTorch's 1e-8.
constexpr double kEps = 1e-3;

struct Session {
  Session(Device& device, const Setting& setting, std::string folder)
      : device(device), setting(setting), folder(std::move(folder)) {
    model = make(1);
    for (const std::string& name : model->left_behind) device.leave_out(name);
    const bool first = setting.optimizer_first && !setting.zero;
    if (first) make_optimizer();
    parallel = initialize(model);
    if (!first) make_optimizer();
    if (setting.average_model) {
      average = make(2);
      initialize(average);
    }
    wrap();
    const auto options = oslo::GradScalerOptions().init_scale(64).growth_interval(2);
    scaler = parallel ? std::make_unique<oslo::GradScaler>(*parallel, options)
                      : std::make_unique<oslo::GradScaler>(model, options);
  }

  Net make(uint64_t seed) const {
    Net net = Device::make(seed, [&] { return Net(setting.net); });
    if (setting.amp) net->to(torch::kFloat);
    return net;
  }

  std::shared_ptr<oslo::ParallelModel> initialize(Net& which) {
    const std::function<void()> example = [&] { which->forward(device.part(batch(0))); };
    return device.initialize(
        which, setting.example ? example : std::function<void()>(),
        [&](oslo::InitializeOptions& how) { how.cut_own_parameters = setting.cut_own; }, keys());
  }

  std::string keys() const {
    std::string keys;
    if (!setting.recomputed.empty()) keys += R"(, "activation_checkpoint": )" + setting.recomputed;
    if (setting.stage > 0) keys += zero_key();
    if (setting.fusion) keys += R"(, "kernel_fusion": true)";
    if (setting.amp) {
      keys += c10::str(R"(, "amp": {"enabled": true, "dtype": ")",
                       *setting.amp == torch::kHalf ? "float16" : "bfloat16", "\"}");
    }
    return keys;
  }

  std::string zero_key() const {
    std::string key =
        c10::str(R"(, "zero_optimization": {"enabled": true, "stage": )", setting.stage);
    if (setting.shards > 0) key += c10::str(R"(, "shard_size": )", setting.shards);
    if (setting.stage == 3) key += c10::str(R"(, "copies_per_host": )", setting.one_copy ? 1 : 0);
    return key + "}";
  }

  /// What the config says of a model that has one.
  std::unique_ptr<oslo::test::UnderAutocast> guard() const {
    if (!setting.amp || device.is_parallel()) return nullptr;
    return std::make_unique<oslo::test::UnderAutocast>(*setting.amp);
  }

  /// DistributedDataParallel is made again after what was frozen changed.
  void wrap() {
    replica.reset();
    if (setting.averaging == Averaging::ddp) {
      replica = std::make_unique<training::Replica<Net>>(
          device, model, oslo::DDPOptions().find_unused_parameters(true));
    }
  }

  /// Of a batch: a third of them is as many on each data rank.
  int64_t rows() const { return device.mesh().data > 2 ? 24 : 12; }
  Tensor batch(int64_t step) const {
    const NetOptions& net = setting.net;
    if (net.tokens) return training::classes({rows(), net.length}, net.inputs, step);
    const Tensor features = training::numbers({rows(), net.length, net.inputs}, 1.7 * double(step));
    return setting.amp ? features.to(torch::kFloat) : features;
  }
  Tensor labels(int64_t step) const {
    return training::classes({rows(), setting.net.length}, setting.net.inputs, 3 * step + 1);
  }

  void make_optimizer() {
    using namespace torch::optim;
    const double lr = 0.02;
    const auto options = [&](double scale) -> std::unique_ptr<OptimizerOptions> {
      switch (setting.rule) {
        case Rule::momentum:
          return std::make_unique<SGDOptions>(
              SGDOptions(lr * scale).momentum(0.9).weight_decay(0.01).dampening(0.1));
        case Rule::nesterov:
          return std::make_unique<SGDOptions>(SGDOptions(lr * scale).momentum(0.8).nesterov(true));
        case Rule::adam:
          return std::make_unique<AdamOptions>(
              AdamOptions(lr * scale).weight_decay(0.01).eps(kEps));
        case Rule::adam_amsgrad:
          return std::make_unique<AdamOptions>(AdamOptions(lr * scale).amsgrad(true).eps(kEps));
        case Rule::adamw:
          return std::make_unique<AdamWOptions>(AdamWOptions(lr * scale).amsgrad(true).eps(kEps));
        case Rule::rmsprop:
          return std::make_unique<RMSpropOptions>(
              RMSpropOptions(lr * scale).momentum(0.5).centered(true).eps(kEps));
        case Rule::adagrad:
          return std::make_unique<AdagradOptions>(
              AdagradOptions(lr * scale).lr_decay(0.01).eps(kEps));
        case Rule::lbfgs:
          return std::make_unique<LBFGSOptions>(LBFGSOptions(lr * 5).max_iter(3).history_size(2));
        default:
          return std::make_unique<SGDOptions>(SGDOptions(lr * 5 * scale));
      }
    };
    std::vector<OptimizerParamGroup> groups;
    if (setting.groups && setting.rule != Rule::lbfgs) {
      Tensors matrices, vectors;
      for (const Tensor& p : model->parameters()) (p.dim() > 1 ? matrices : vectors).push_back(p);
      groups.emplace_back(matrices, options(1));
      if (!vectors.empty()) groups.emplace_back(vectors, options(0.5));
    } else {
      groups.emplace_back(model->parameters(), options(1));
    }
    const auto of = [&]<typename Kind, typename Options>(Kind*, Options*) {
      const auto& first = static_cast<Options&>(groups[0].options());
      if (setting.zero && parallel) {
        optimizer = std::make_unique<oslo::ZeroOptimizer<Kind>>(*parallel, groups, first);
      } else {
        optimizer = std::make_unique<Kind>(groups, first);
      }
    };
    switch (setting.rule) {
      case Rule::adam:
      case Rule::adam_amsgrad:
        of((Adam*)nullptr, (AdamOptions*)nullptr);
        break;
      case Rule::adamw:
        of((AdamW*)nullptr, (AdamWOptions*)nullptr);
        break;
      case Rule::rmsprop:
        of((RMSprop*)nullptr, (RMSpropOptions*)nullptr);
        break;
      case Rule::adagrad:
        of((Adagrad*)nullptr, (AdagradOptions*)nullptr);
        break;
      case Rule::lbfgs:
        of((LBFGS*)nullptr, (LBFGSOptions*)nullptr);
        break;
      default:
        of((SGD*)nullptr, (SGDOptions*)nullptr);
    }
    scheduler.reset();
    if (setting.schedule) {
      scheduler = std::make_unique<StepLR>(*optimizer, 2, 0.5);
    }
  }

  Tensor forward(const Tensor& x) { return replica ? replica->forward(x) : model->forward(x); }

  /// The loss of this data rank's rows of a part of the batch.
  Tensor loss_of(int64_t step, int64_t micro, int64_t of) {
    return loss_of_rows(device.part(batch(step).chunk(of)[micro]),
                        device.part(labels(step).chunk(of)[micro]), /*noted=*/of == 1);
  }

  Tensor loss_of_rows(const Tensor& x, const Tensor& y, bool noted) {
    const auto autocast = guard();
    const Tensor logits = forward(x);
    if (noted) device.note_rows("logits", logits);
    Tensor loss = loss_between(logits, y);
    if (average) {
      const torch::NoGradGuard no_grad;
      target = average->forward(x);
    }
    if (average) loss = loss + 0.1 * torch::mse_loss(logits, target);
    return loss;
  }

  /// Means over positions: what data ranks compute of their own rows averages to the whole.
  Tensor loss_between(const Tensor& logits, const Tensor& y) const {
    namespace F = torch::nn::functional;
    const Tensor rows = logits.flatten(0, 1), wanted = y.flatten();
    const int64_t classes = setting.net.inputs;
    switch (setting.loss) {
      case 1:  // by hand
        return -torch::log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).mean();
      case 2:
        return torch::nll_loss(torch::log_softmax(rows, 1), wanted);
      case 3:
        return F::cross_entropy(rows, wanted, F::CrossEntropyFuncOptions().label_smoothing(0.1));
      case 4:
        return F::binary_cross_entropy_with_logits(
            rows, torch::one_hot(wanted, classes).to(rows.dtype()));
      case 5: {  // focal
        const Tensor p = torch::softmax(rows, 1).gather(1, wanted.unsqueeze(1)).squeeze(1);
        return (-(1 - p).pow(2) * torch::log(p + 1e-8)).mean();
      }
      case 6: {  // cosine of normalized rows
        // Rows of roundings alone (a norm of equal numbers) stay small.
        const auto options = F::NormalizeFuncOptions().dim(1).eps(1e-3);
        const Tensor unit = F::normalize(rows, options);
        return torch::mse_loss(unit, torch::one_hot(wanted, classes).to(rows.dtype())) +
               0.01 * rows.logsumexp(1).pow(2).mean();
      }
      case 7:
        return F::cross_entropy(logits.transpose(1, 2), y,
                                F::CrossEntropyFuncOptions().reduction(torch::kNone))
            .sum(1)
            .mean();
      case 8: {  // hinge, smoothed
        const Tensor right = rows.gather(1, wanted.unsqueeze(1));
        return torch::softplus(rows - right + 1).mean();
      }
      default:
        return F::cross_entropy(rows, wanted);
    }
  }

  /// What DistributedDataParallel does, by hand.
  void exchange() {
    if (!device.is_parallel() || setting.averaging == Averaging::ddp) return;
    if (setting.averaging == Averaging::own_group && device.mesh().data == 1) return;
    const torch::NoGradGuard no_grad;
    std::vector<const void*> done;
    for (const Tensor& p : model->parameters()) {
      Tensor gradient = p.grad();
      if (!gradient.defined()) continue;
      if (std::ranges::count(done, p.unsafeGetTensorImpl()) > 0) continue;
      done.push_back(p.unsafeGetTensorImpl());
      if (setting.averaging == Averaging::c10d) {
        std::vector<Tensor> one{gradient};
        device.mpu().get_data_parallel_group()->allreduce(one)->wait();
        gradient.div_(device.mesh().data);
      } else {
        Tensor part = oslo::local_tensor(gradient);
        part.copy_(device.mpu().data_group()->all_reduce(part.clone()) / device.mesh().data);
      }
    }
  }

  /// Zeroed gradients, then those of a batch in `of` parts.
  void backward(int64_t of, bool to_none) {
    optimizer->zero_grad(to_none);
    accumulate(of);
  }
  void accumulate(int64_t of) {
    ++steps;
    // What lies there already is the same on all data ranks, and stays so when averaged again.
    for (int64_t i = 0; i < of; ++i) {
      const auto quiet = replica && i + 1 < of ? replica->no_sync() : nullptr;
      const Tensor loss = loss_of(steps, i, of) / double(of);
      loss.backward();
      device.note_mean("loss", loss);
    }
    exchange();
  }

  void step() {
    if (setting.rule == Rule::lbfgs) {
      optimizer->step([&] {
        optimizer->zero_grad();
        Tensor loss = loss_of(steps, 0, 1);
        loss.backward();
        exchange();
        if (device.is_parallel() && device.mesh().data > 1) {
          loss = device.mpu().data_group()->all_reduce(loss.detach().clone()) / device.mesh().data;
        }
        device.note("loss in the closure", loss);
        return loss;
      });
    } else {
      optimizer->step();
    }
    device.note_state("model", *model);
  }

  /// A parameter that is in use.
  Tensor parameter(int64_t number) const {
    Tensors used;
    for (const auto& item : model->named_parameters()) {
      if (std::ranges::count(model->left_behind, item.key()) == 0) used.push_back(item.value());
    }
    return used[static_cast<size_t>(number) % used.size()];
  }

  Device& device;
  const Setting& setting;
  std::string folder;  ///< empty, for this run's checkpoints, seen by all ranks
  Net model{nullptr}, average{nullptr};
  std::shared_ptr<oslo::ParallelModel> parallel;
  std::unique_ptr<training::Replica<Net>> replica;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<torch::optim::LRScheduler> scheduler;
  std::unique_ptr<oslo::GradScaler> scaler;
  Tensor target;
  int64_t steps = 0;
  std::vector<Tensor> best, momentum;  ///< kept in memory, one a parameter
};

}  // namespace history
