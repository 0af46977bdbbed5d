#pragma once

#include <limits>

#include "tests/support/history_session.h"

namespace history::habits {

/// A step with a scaled loss, which overflows on one data rank where the first number says so.
inline void scaled_step(Session& s, const Numbers& n) {
  if (s.setting.rule == Rule::lbfgs) return;  // a closure computes its loss
  s.optimizer->zero_grad(n[1] % 2 == 0);
  ++s.steps;
  const Tensor loss = s.loss_of(s.steps, 0, 1);
  const bool overflows = n[0] % 3 == 0;
  const bool here = !s.device.is_parallel() || s.device.data_rank() == n[1] % s.device.mesh().data;
  const double factor = overflows && here ? std::numeric_limits<double>::infinity() : 1;
  (s.scaler->scale(loss) * factor).backward();
  s.exchange();
  if (n[1] % 3 == 0) s.scaler->unscale_(*s.optimizer);
  if (n[1] % 3 == 0 && !overflows) s.device.note_gradients("unscaled", *s.model);
  const bool stepped = s.scaler->step(*s.optimizer);
  s.scaler->update();
  if (stepped && s.scheduler) s.scheduler->step();
  if (!stepped) s.optimizer->zero_grad();  // what is infinite on one device may be NaN on another
  s.device.note("stepped", stepped ? 1.0 : 0.0);
  s.device.note("scale", s.scaler->get_scale());
  s.device.note_state("model", *s.model);
}

}  // namespace history::habits
