#include "oslo_cpp/training/rates/reduce_on_plateau.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "mpu/base/error.h"
#include "oslo_cpp/training/rates/group_rates.h"

namespace oslo {
namespace {

void check_plateau(const PlateauOptions& options) {
  const auto one_of = [](const char* what, const std::string& seen, const char* a, const char* b) {
    OSLO_CHECK(seen == a || seen == b, "ReduceLROnPlateau: ", what, " '", seen, "'; set it to '", a,
               "' or '", b, "'");
  };
  one_of("mode", options.mode(), "min", "max");
  one_of("threshold_mode", options.threshold_mode(), "rel", "abs");
  OSLO_CHECK(options.factor() >= 0 && options.factor() < 1, "ReduceLROnPlateau: factor ",
             options.factor(), "; set it from 0 to below 1");
  OSLO_CHECK(options.patience() >= 0 && options.cooldown() >= 0, "ReduceLROnPlateau: patience ",
             options.patience(), ", cooldown ", options.cooldown(), "; set both from 0");
  OSLO_CHECK(options.threshold() >= 0 && options.min_lr() >= 0 && options.eps() >= 0,
             "ReduceLROnPlateau: threshold ", options.threshold(), ", min_lr ", options.min_lr(),
             ", eps ", options.eps(), "; set them from 0");
}

double worst_of(const PlateauOptions& options) {
  const double infinity = std::numeric_limits<double>::infinity();
  return options.mode() == "min" ? infinity : -infinity;
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                                     const PlateauOptions& options)
    : optimizer_(optimizer), options_(options), best_(worst_of(options)) {
  check_plateau(options);
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool smaller = options_.mode() == "min";
  const double sign = smaller ? -1 : 1;
  if (options_.threshold_mode() == "abs") {
    const double bar = best_ + sign * options_.threshold();
    return smaller ? metric < bar : metric > bar;
  }
  const double bar = best_ * (1 + sign * options_.threshold());
  return smaller ? metric < bar : metric > bar;
}

bool ReduceLROnPlateau::step(double metric) {
  if (is_better(metric)) {
    best_ = metric;
    bad_ = 0;
  } else {
    ++bad_;
  }
  if (cooling_ > 0) {
    --cooling_;
    bad_ = 0;
  }
  if (bad_ <= options_.patience()) return false;
  cooling_ = options_.cooldown();
  bad_ = 0;
  return reduce();
}

bool ReduceLROnPlateau::reduce() {
  std::vector<double> rates = group_rates(optimizer_);
  bool reduced = false;
  for (double& rate : rates) {
    const double smaller = std::max(rate * options_.factor(), options_.min_lr());
    if (rate - smaller <= options_.eps()) continue;
    rate = smaller;
    reduced = true;
  }
  set_group_rates(optimizer_, rates);
  return reduced;
}

std::vector<double> ReduceLROnPlateau::get_last_lr() const {
  return group_rates(optimizer_);
}

nlohmann::json ReduceLROnPlateau::state_dict() const {
  nlohmann::json state = {
      {"mode", options_.mode()}, {"num_bad_epochs", bad_}, {"cooldown_counter", cooling_}};
  // JSON has no infinity.
  state["best"] = std::isfinite(best_) ? nlohmann::json(best_)
                                       : nlohmann::json(best_ > 0 ? "infinity" : "-infinity");
  return state;
}

void ReduceLROnPlateau::load_state_dict(const nlohmann::json& state) {
  const auto count = [&](const char* key) {
    return state.contains(key) && state[key].is_number_integer() && state[key].get<int64_t>() >= 0;
  };
  const bool fits =
      state.is_object() && state.contains("mode") && state.contains("best") &&
      count("num_bad_epochs") && count("cooldown_counter") &&
      (state["best"].is_number() || state["best"] == "infinity" || state["best"] == "-infinity");
  OSLO_CHECK(fits, "ReduceLROnPlateau: this is no state of one; pass what state_dict() returned");
  OSLO_CHECK(state["mode"] == options_.mode(), "ReduceLROnPlateau: the state is of mode ",
             state["mode"].dump(), ", and this has '", options_.mode(), "'; make it of that mode");
  const double infinity = std::numeric_limits<double>::infinity();
  const auto& best = state["best"];
  best_ = best.is_number() ? best.get<double>() : best == "infinity" ? infinity : -infinity;
  bad_ = state["num_bad_epochs"].get<int64_t>();
  cooling_ = state["cooldown_counter"].get<int64_t>();
}

}  // namespace oslo
