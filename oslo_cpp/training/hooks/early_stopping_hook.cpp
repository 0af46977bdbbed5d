#include "oslo_cpp/training/hooks/early_stopping_hook.h"

#include "mpu/base/error.h"
#include "oslo_cpp/training/hooks/metric_of.h"

namespace oslo {

EarlyStoppingHook::EarlyStoppingHook(const EarlyStoppingOptions& options) : options_(options) {
  OSLO_CHECK(options.mode() == "min" || options.mode() == "max", "EarlyStoppingHook: mode '",
             options.mode(), "'; set it to 'min' or 'max'");
  OSLO_CHECK(options.patience() >= 0 && options.min_delta() >= 0, "EarlyStoppingHook: patience ",
             options.patience(), ", min_delta ", options.min_delta(), "; set both from 0");
}

void EarlyStoppingHook::after_test(Training& training) {
  const double metric = metric_of(training, options_.metric(), name());
  const double gain = options_.mode() == "min" ? best_ - metric : metric - best_;
  const bool better = seen_ ? gain > options_.min_delta() : metric == metric;
  if (better) {
    best_ = metric;
    seen_ = true;
    bad_ = 0;
  } else if (++bad_ > options_.patience()) {
    training.stopped = c10::str(options_.metric(), " has been no better than ", best_, " in ", bad_,
                                " evaluations");
  }
}

nlohmann::json EarlyStoppingHook::state_dict() const {
  return {{"seen", seen_}, {"best", best_}, {"bad", bad_}};
}

void EarlyStoppingHook::load_state_dict(const nlohmann::json& state) {
  seen_ = state.at("seen");
  best_ = state.at("best");
  bad_ = state.at("bad");
}

}  // namespace oslo
