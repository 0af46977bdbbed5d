#include "oslo_cpp/train_net/net_trainer.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "mpu/base/words/nearest_name.h"
#include "mpu/world/agreement.h"
#include "mpu/world/local_device.h"
#include "oslo_cpp/engine/rank_rows.h"
#include "oslo_cpp/step/counted_step.h"
#include "oslo_cpp/train_net/build_optimizer.h"
#include "oslo_cpp/train_net/output_folder.h"
#include "oslo_cpp/training/hooks/rate_hooks.h"
#include "oslo_cpp/training/show/text_file.h"
#include "oslo_cpp/training/trainer/trainer_state.h"
#include "parallelizers/data/clip_grad_norm.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

c10::Device device_called(const World& world, const std::string& name) {
  return name == "cpu" ? c10::Device(c10::kCPU) : local_device(world, name);
}

const auto& maker_of(const TrainedModels& models, const std::string& name) {
  OSLO_CHECK_AS(config, !models.empty(), "the model library has no models");
  const auto found = models.find(name);
  if (found != models.end()) return found->second;
  std::vector<std::string> names;
  std::string all;
  for (const auto& [each, maker] : models) {
    names.push_back(each);
    all += (all.empty() ? "" : ", ") + each;
  }
  const std::string* const meant = name_meant(names, name);
  fail_as(ErrorKind::config, "'model.name' = '", printable(name),
          "': there is no such model in the library; ",
          meant == nullptr ? "its models are " + all
                           : "the nearest name is '" + *meant + "' (of " + all + ")");
}

/// What a run goes on with when it is resumed: the scaler of its losses, and what its numbers
/// follow from beside the checkpoint, which has to be as it was.
class RunHook final : public TrainerHook {
 public:
  RunHook(const TrainValues& values, int64_t global_batch_size, std::optional<GradScaler>& scaler)
      : scaler_(scaler) {
    const OptimizerValues& optim = values.optim;
    asked_ = {{"optim.lr", optim.lr},
              {"optim.weight_decay", optim.weight_decay},
              {"optim.betas", optim.betas},
              {"optim.eps", optim.eps},
              {"optim.momentum", optim.momentum},
              {"train.seed", values.seed},
              {"train.global_batch_size", global_batch_size}};
  }

  std::string name() const override { return "Run"; }

  nlohmann::json state_dict() const override {
    nlohmann::json state = {{"asked", asked_}};
    if (scaler_) state["scaler"] = scaler_->state_dict();
    return state;
  }

  void load_state_dict(const nlohmann::json& state) override {
    for (const auto& [key, value] : asked_.items()) {
      const nlohmann::json& began = state.at("asked").at(key);
      OSLO_CHECK_AS(config, began == value, "--resume: '", key, "' is ", value.dump(),
                    ", and the run began with ", began.dump(),
                    ": leave it as it was, or begin another run with 'train.load_weight'");
    }
    if (scaler_ && state.contains("scaler")) scaler_->load_state_dict(state["scaler"]);
  }

 private:
  nlohmann::json asked_;
  std::optional<GradScaler>& scaler_;
};

}  // namespace

NetTrainer::NetTrainer(const TrainConfig& config, const TrainedModels& models, const World& world)
    : world_(world),
      config_(config),
      values_(config.values()),
      sizes_(config.parallel().resolve(world.size())),
      batches_(batch_sizes(values_, sizes_.data)),
      device_(device_called(world, values_.device_type)) {
  if (!world_.plan_only())
    agree_on_text(world_, "the training's config", config_.to_string(),
                  "start every rank with the same config and overrides");
  at::manual_seed(static_cast<uint64_t>(values_.seed));
  net_ = maker_of(models, values_.model)(
      ModelRequest{values_.cfg, values_.train_data, values_.test_data, values_.seed});
  net_.model->to(device_);
  const int64_t iterations = iterations_of(values_, net_.train.size, batches_);
  order_.emplace(net_.train.size, batches_.global, values_.seed);
  if (evaluates()) check_evaluation(samples_of_evaluation());
  initialize_model();

  optimizer_ = build_optimizer(values_.optim, *parallel_);
  rates_ = build_schedule(values_, *optimizer_, iterations);
  schedule_.emplace(*parallel_);
  if (const ConfigValues& given = parallel_->config().values();
      given.amp && given.amp_dtype == "float16") {
    scaler_.emplace(*parallel_);
  }
  training_.emplace(Training{*parallel_, *optimizer_});
  training_->max_steps = iterations;
  training_->batches = order_->batches_an_epoch();
  training_->epochs = (iterations + training_->batches - 1) / training_->batches;
  const std::string picture = (fs::path(values_.output_dir) / "loss.svg").string();
  losses_ = std::make_shared<LossHook>(picture, values_.log_period);
  hooks_ = {std::make_shared<RunHook>(values_, batches_.global, scaler_),
            std::make_shared<LRSchedulerHook>(*rates_), losses_};
  training_->state_dict = [this] { return training_state(*training_, hooks_); };
}

void NetTrainer::initialize_model() {
  Config config = config_.parallel();
  config.set("train.num_accumulation_steps=" + std::to_string(batches_.accumulation));
  InitializeOptions how = net_.how;
  how.world = world_;
  // What a rank computes at a time.
  std::vector<int64_t> first(static_cast<size_t>(batches_.micro));
  for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<int64_t>(i);
  const Tensors example = rows(net_.train, first);
  how.example_inputs = [this, &example] { net_.forward(example); };
  parallel_.emplace(oslo::initialize(net_.model, config, how));
  // Data ranks have rows of their own, and draw dropout of their own.
  const int data_rank = parallel_->mpu().get_data_parallel_rank();
  if (data_rank > 0) at::manual_seed(static_cast<uint64_t>(values_.seed + data_rank));
  if (values_.load_weight && !values_.load_weight->empty()) {
    parallel_->from_parallelized(*values_.load_weight);
  }
}

bool NetTrainer::evaluates() const {
  return values_.evaluates.value_or(net_.test.size > 0);
}

void NetTrainer::resume() {
  const std::string folder = checkpoints_in(values_.output_dir);
  resume_training(folder, *training_, hooks_);
  OSLO_CHECK_AS(config, training_->steps <= training_->max_steps, "--resume: the run in ",
                printable_path(folder), " has done ", training_->steps,
                " iterations, and 'train.train_iter' is ", training_->max_steps);
  // The rates that came with the optimizer are those of the schedule that the run had until then.
  nlohmann::json rates = rates_->state_dict();
  if (rates_->steps() > 0) {
    rates["steps"] = rates_->steps() - 1;
    rates_->load_state_dict(rates);
    rates_->step();
  }
  saved_ = training_->steps;
}

NetTrainer::Tensors NetTrainer::rows(const TrainingData& data,
                                     const std::vector<int64_t>& samples) const {
  std::vector<Tensors> columns;
  for (const int64_t number : samples) {
    const Tensors sample = data.sample(number);
    columns.resize(std::max(columns.size(), sample.size()));
    for (size_t i = 0; i < sample.size(); ++i) columns[i].push_back(sample[i]);
  }
  Tensors batch;
  for (const Tensors& column : columns) batch.push_back(at::stack(column).to(device_));
  return batch;
}

/// This data rank's part, in the order of the ranks.
NetTrainer::Tensors NetTrainer::own_rows(const TrainingData& data,
                                         const std::vector<int64_t>& samples) const {
  const RankRows own(static_cast<int64_t>(samples.size()),
                     parallel_->mpu().get_data_parallel_rank(), sizes_.data);
  const auto first = samples.begin() + own.start;
  return rows(data, {first, first + own.length});
}

TrainedBatch NetTrainer::run(const Tensors& batch, bool trains) {
  const double scale = trains && scaler_ ? scaler_->get_scale() : 1;
  const StepResult step = schedule_->forward_backward_step(
      batch, net_.forward,
      [&](const at::Tensor& output, const Tensors& micro_batch) {
        const CountedLoss loss = net_.criterion(output, micro_batch);
        const at::Tensor mean = counted_mean(loss.sum, loss.count, *schedule_);
        return trains && scaler_ ? scaler_->scale(mean) : mean;
      },
      StepOptions().forward_only(!trains));
  TrainedBatch done;
  done.loss = scale == 1 ? step.loss : step.loss / scale;
  done.rows = batch.front().size(0);
  done.labels = batch.back().numel();
  done.weight = step.counted.value_or(0);
  return done;
}

void NetTrainer::iterate() {
  training_->epoch = training_->steps / training_->batches;
  training_->batch = training_->steps % training_->batches;
  optimizer_->zero_grad();
  TrainedBatch batch = run(own_rows(net_.train, order_->of(training_->steps)), /*trains=*/true);
  const OptimizerValues& optim = values_.optim;
  const bool clips = optim.clip_grad_max_norm.value_or(0) > 0;
  if (scaler_ && clips) scaler_->unscale_(*optimizer_);
  if (clips) {  // of the optimizer's parameters, of which it has each once
    clip_grad_norm_(optimizer_->param_groups().front().params(), *optim.clip_grad_max_norm,
                    optim.clip_grad_norm_type);
  }
  batch.stepped = true;
  if (scaler_) {
    batch.stepped = scaler_->step(*optimizer_);
    scaler_->update();
  } else {
    optimizer_->step();
  }
  ++training_->steps;
  ++training_->batch;
  tell(batch);
}

double NetTrainer::rate() const {
  return optimizer_->param_groups().front().options().get_lr();
}

void NetTrainer::tell(const TrainedBatch& batch) {
  const double lr = rate();  // that of this iteration: the hooks set the next one's
  for (const auto& hook : hooks_) hook->after_train_iter(*training_, batch);
  log_->batch_ends(batch, sizes_.data);
  if (training_->steps % values_.log_period == 0) {
    log_->iteration(*training_, batches_.global, losses_->train().points.back().second, lr);
  }
}

void NetTrainer::save() {
  if (std::exchange(saved_, training_->steps) == training_->steps) return;
  parallel_->save_parallelized(checkpoints_in(values_.output_dir),
                               SaveOptions()
                                   .optimizer(optimizer_.get())
                                   .step(training_->steps)
                                   .keep_last(values_.max_to_keep)
                                   .extra({{"trainer", training_->state_dict()}}));
  losses_->after_epoch(*training_);  // the picture
}

/// Of a batch of the test data, over all data ranks: what a step computes at a time.
int64_t NetTrainer::rows_of_evaluation() const {
  return int64_t{sizes_.data} * batches_.accumulation *
         values_.test_micro_batch_size.value_or(batches_.micro);
}

int64_t NetTrainer::samples_of_evaluation() const {
  if (!values_.eval_iter) return net_.test.size;
  return std::min(net_.test.size, *values_.eval_iter * rows_of_evaluation());
}

/// Each data rank needs a row for each of its micro-batches.
void NetTrainer::check_evaluation(int64_t samples) const {
  const int64_t least = int64_t{sizes_.data} * batches_.accumulation;
  OSLO_CHECK_AS(config, samples >= least, "an evaluation of ", samples,
                " samples ('dataloader.test'), where ", sizes_.data, " data ranks x ",
                batches_.accumulation, " micro-batches need ", least,
                ": give more of them, or set 'train.evaluation.enabled' to false");
}

/// In batches of that many rows or a few more, so that there is no short one.
double NetTrainer::test_loss(int64_t samples) {
  check_evaluation(samples);
  const int64_t usual = rows_of_evaluation();
  const int64_t number = std::max<int64_t>(1, samples / usual);
  double sum = 0, counted = 0;
  for (int64_t i = 0; i < number; ++i) {
    std::vector<int64_t> numbers;
    for (int64_t at = samples * i / number; at < samples * (i + 1) / number; ++at) {
      numbers.push_back(at);
    }
    const TrainedBatch batch = run(own_rows(net_.test, numbers), /*trains=*/false);
    if (batch.weight > 0) sum += batch.loss.item<double>() * batch.weight;
    counted += batch.weight;
  }
  MetricSums sums;
  const bool last = training_->is_last_stage();
  sums.add("loss", last ? sum : 0, last ? counted : 0);
  return sums.means(parallel_->mpu()).at("loss");
}

double NetTrainer::evaluate() {
  OSLO_CHECK_AS(config, net_.test.size > 0,
                "nothing to evaluate: there is no 'dataloader.test', or it is empty");
  const int64_t samples = samples_of_evaluation();
  net_.model->eval();
  const double loss = test_loss(samples);
  net_.model->train();
  training_->metrics["test/loss"] = loss;
  losses_->after_test(*training_);
  if (log_) log_->evaluation(*training_, loss, samples);
  return loss;
}

void NetTrainer::evaluate_if_asked() {
  if (!evaluates()) return;
  const bool last = training_->steps >= training_->max_steps;
  const bool asked = training_->steps % values_.eval_period == 0;
  if (asked || (last && values_.eval_after_train)) evaluate();
}

void NetTrainer::train() {
  write_text_once(world_, fs::path(values_.output_dir) / "config.json",
                  [&] { return config_.to_string(parallel_->config()) + "\n"; });
  agree_on_success(world_, "the training's log",
                   [&] { log_.emplace(training_->leads(), values_.output_dir, training_->steps); });
  log_->say(c10::str("training ", values_.model, " on ", world_.size(), " ranks: data ",
                     sizes_.data, " x tensor ", sizes_.tensor, " x pipeline ", sizes_.pipeline,
                     "; ", batches_.global, " rows a step in ", batches_.accumulation,
                     batches_.accumulation == 1 ? " micro-batch" : " micro-batches",
                     " a data rank; iterations ", training_->steps, " to ", training_->max_steps));
  net_.model->train();
  while (training_->steps < training_->max_steps) {
    iterate();
    evaluate_if_asked();
    if (training_->steps % values_.checkpoint_period == 0) save();
  }
  save();
  log_->say("trained " + std::to_string(training_->steps) + " iterations; written to " +
            printable_path(values_.output_dir));
}

}  // namespace oslo
