#include "oslo_cpp/scaling/grad_scaler.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/model/initialized_tag.h"
#include "oslo_cpp/scaling/scaled_gradients.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {
namespace {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

std::shared_ptr<Group> all_ranks(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group("world", std::move(ranks));
}

ScaledGradients gradients_of(const std::vector<const ParallelModel*>& models) {
  OSLO_CHECK(!models.empty(), "GradScaler was given no models");
  std::optional<World> world;
  Modules modules;
  for (const ParallelModel* const model : models) {
    OSLO_CHECK(model != nullptr, "GradScaler was given a null pointer among its models");
    const World& own = model->mpu().world();
    if (!world) world = own;
    OSLO_CHECK(own.size() == world->size() && own.rank() == world->rank(),
               "GradScaler: one model is in a world of ", world->size(),
               " ranks, another in one of ", own.size(),
               "; give initialize the same world for both");
    modules.push_back(model->module());
  }
  return ScaledGradients(modules, all_ranks(*world));
}

/// Its other ranks would not be asked.
std::shared_ptr<torch::nn::Module> not_parallel(std::shared_ptr<torch::nn::Module> model) {
  OSLO_CHECK(model != nullptr, "GradScaler was given an empty module");
  OSLO_CHECK(!is_initialized(ModelView(model)),
             "GradScaler: the module is parallel, and its verdict needs all its ranks; hand over "
             "what initialize returned: oslo::GradScaler scaler(parallel)");
  return model;
}

void check_number(bool holds, const char* name, double value, const char* must) {
  OSLO_CHECK(holds && std::isfinite(value), "GradScaler: ", name, " is ", value, "; it must be ",
             must);
}

void check_options(const GradScalerOptions& options) {
  if (!options.enabled()) return;
  check_number(options.init_scale() > 0, "init_scale", options.init_scale(), "above 0");
  check_number(options.growth_factor() > 1, "growth_factor", options.growth_factor(), "above 1");
  check_number(options.backoff_factor() > 0 && options.backoff_factor() < 1, "backoff_factor",
               options.backoff_factor(), "between 0 and 1");
  check_number(options.growth_interval() > 0, "growth_interval",
               static_cast<double>(options.growth_interval()), "above 0");
}

}  // namespace

struct GradScaler::State {
  /// How far an optimizer is in a step.
  enum class Progress { ready, unscaled, stepped };

  State(ScaledGradients gradients, const GradScalerOptions& options)
      : options(options),
        gradients(std::move(gradients)),
        scale(at::full({}, options.init_scale(), at::kFloat)),
        growth_tracker(at::zeros({}, at::kInt)) {
    check_options(options);
  }

  double current() const { return scale.item<float>(); }
  void check_scaled(const char* method) const {
    OSLO_CHECK(scaled, "GradScaler: attempted ", method,
               " but nothing was scaled; call scaler.scale(loss).backward() earlier in the "
               "iteration");
  }
  void unscale(torch::optim::Optimizer& optimizer);

  GradScalerOptions options;
  ScaledGradients gradients;
  at::Tensor scale;                 ///< one float, on the CPU
  at::Tensor growth_tracker;        ///< steps without overflow since the scale has changed
  bool scaled = false;              ///< anything, ever
  std::optional<bool> finite = {};  ///< the verdict of this step
  std::map<const torch::optim::Optimizer*, Progress> progress = {};
};

/// The first optimizer of a step brings the verdict about.
void GradScaler::State::unscale(torch::optim::Optimizer& optimizer) {
  gradients.check_own(optimizer);
  if (finite) {
    gradients.unscale(current(), optimizer);
  } else {
    finite = gradients.all_finite(current(), optimizer);
  }
  progress[&optimizer] = Progress::unscaled;
}

GradScaler::GradScaler(const std::vector<const ParallelModel*>& models,
                       const GradScalerOptions& options)
    : state_(std::make_unique<State>(gradients_of(models), options)) {}

GradScaler::GradScaler(const ParallelModel& parallel, const GradScalerOptions& options)
    : GradScaler(std::vector<const ParallelModel*>{&parallel}, options) {}

GradScaler::GradScaler(std::shared_ptr<torch::nn::Module> model, const GradScalerOptions& options)
    : state_(std::make_unique<State>(
          ScaledGradients({not_parallel(std::move(model))}, all_ranks(World::alone())), options)) {}

GradScaler::GradScaler(const DataParallelCore& core, const GradScalerOptions& options)
    : state_(std::make_unique<State>(
          ScaledGradients({not_parallel(core.module())}, core.shared_group()), options)) {}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  State& state = *state_;
  if (!state.options.enabled()) return loss;
  OSLO_CHECK(!state.finite || !c10::GradMode::is_enabled(),
             "GradScaler: scale() behind unscale_() or step(), whose verdict on this step has not "
             "seen the gradients that come of it; run all backward passes first, or call update() "
             "between models that are trained one after the other");
  state.scaled = true;
  // A tensor, not a number: float16 x 65536 would overflow.
  return loss.mul(state.scale.clone());
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& losses) {
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& loss : losses) scaled.push_back(scale(loss));
  return scaled;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  State& state = *state_;
  if (!state.options.enabled()) return;
  state.check_scaled("unscale_");
  const State::Progress progress = state.progress[&optimizer];
  OSLO_CHECK(progress != State::Progress::unscaled,
             "GradScaler: unscale_() has already been called on this optimizer since the last "
             "update()");
  OSLO_CHECK(progress != State::Progress::stepped,
             "GradScaler: unscale_() is being called after step()");
  state.unscale(optimizer);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  State& state = *state_;
  if (state.options.enabled()) {
    state.check_scaled("step");
    const State::Progress progress = state.progress[&optimizer];
    OSLO_CHECK(progress != State::Progress::stepped,
               "GradScaler: step() has already been called since the last update()");
    if (progress == State::Progress::ready) state.unscale(optimizer);
    state.progress[&optimizer] = State::Progress::stepped;
    if (!*state.finite) return false;
  }
  optimizer.step();
  return true;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer,
                      const torch::optim::Optimizer::LossClosure& closure) {
  OSLO_CHECK(!is_enabled(),
             "GradScaler: closure use is not currently supported if the scaler is enabled");
  optimizer.step(closure);
  return true;
}

void GradScaler::update(std::optional<double> new_scale) {
  State& state = *state_;
  if (!state.options.enabled()) return;
  state.check_scaled("update");
  if (new_scale) {
    check_number(*new_scale > 0, "the new scale", *new_scale, "above 0");
    state.scale.fill_(*new_scale);
  } else {
    OSLO_CHECK(state.finite,
               "GradScaler: no inf checks were recorded prior to update(); call "
               "step() or unscale_() first");
    at::_amp_update_scale_(state.scale, state.growth_tracker,
                           at::full({}, *state.finite ? 0.0 : 1.0, at::kFloat),
                           state.options.growth_factor(), state.options.backoff_factor(),
                           state.options.growth_interval());
  }
  state.finite.reset();
  state.progress.clear();
}

double GradScaler::get_scale() const {
  return is_enabled() ? state_->current() : 1.0;
}
double GradScaler::get_growth_factor() const {
  return state_->options.growth_factor();
}
void GradScaler::set_growth_factor(double factor) {
  state_->options.growth_factor(factor);
  check_options(state_->options);
}
double GradScaler::get_backoff_factor() const {
  return state_->options.backoff_factor();
}
void GradScaler::set_backoff_factor(double factor) {
  state_->options.backoff_factor(factor);
  check_options(state_->options);
}
int64_t GradScaler::get_growth_interval() const {
  return state_->options.growth_interval();
}
void GradScaler::set_growth_interval(int64_t interval) {
  state_->options.growth_interval(interval);
  check_options(state_->options);
}
bool GradScaler::is_enabled() const {
  return state_->options.enabled();
}

nlohmann::json GradScaler::state_dict() const {
  if (!is_enabled()) return nlohmann::json::object();
  return {{"scale", get_scale()},
          {"growth_factor", get_growth_factor()},
          {"backoff_factor", get_backoff_factor()},
          {"growth_interval", get_growth_interval()},
          {"_growth_tracker", state_->growth_tracker.item<int>()}};
}

void GradScaler::load_state_dict(const nlohmann::json& state) {
  if (!is_enabled()) return;
  OSLO_CHECK(!state.empty(),
             "GradScaler: the source state dict is empty, possibly because it was "
             "saved from a disabled instance of GradScaler");
  for (const char* const key :
       {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}) {
    OSLO_CHECK(state.contains(key) && state[key].is_number(),
               "GradScaler: the state dict has no number \"", key,
               "\"; pass what state_dict() returned");
  }
  GradScalerOptions options = GradScalerOptions(state_->options)
                                  .init_scale(state["scale"])
                                  .growth_factor(state["growth_factor"])
                                  .backoff_factor(state["backoff_factor"])
                                  .growth_interval(state["growth_interval"]);
  check_options(options);
  state_->scale.fill_(options.init_scale());
  state_->growth_tracker.fill_(state["_growth_tracker"].get<int>());
  state_->options = options.init_scale(state_->options.init_scale());
}

Ledger& GradScaler::ledger() {
  return state_->gradients.ranks().ledger();
}

}  // namespace oslo
