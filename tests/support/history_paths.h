#pragma once

#include <stdexcept>

#include "tests/support/history_session.h"

// Passes that end early, take other ways on other data ranks, or train other parameters.
namespace history::habits {

/// What is frozen changes; something is always trained.
inline void train_some(Session& s, const Numbers& n) {
  const int64_t every = n[0] % 3 + 1;
  int64_t number = n[1];
  bool any = false;
  for (const auto& item : s.model->named_parameters()) {
    if (std::ranges::count(s.model->left_behind, item.key()) > 0) continue;
    Tensor parameter = item.value();
    parameter.requires_grad_(number++ % every == 0);
    any |= parameter.requires_grad();
  }
  if (!any) s.parameter(0).requires_grad_(true);
  s.wrap();
}

/// Forward or backward throws on all ranks. Nothing is made again behind it but gradients are let
/// go of.
inline void throw_in_a_pass(Session& s, const Numbers& n) {
  s.optimizer->zero_grad();
  const auto stop = [](const Tensor& gradient) {
    if (gradient.defined()) throw std::runtime_error("on its way");
    return gradient;
  };
  Tensor p = s.parameter(n[0]);
  const size_t block = static_cast<size_t>(n[0]) % s.model->blocks.size();
  std::optional<unsigned> hook;
  if (n[1] % 3 == 0) {
    if (!p.requires_grad()) return;
    hook = p.register_hook(stop);
  } else {
    s.model->behind_block = [=](size_t i, const Tensor& output) {
      if (i != block) return;
      if (n[1] % 3 == 1) throw std::runtime_error("before it was computed");
      if (output.requires_grad()) output.register_hook(stop);
    };
  }
  bool threw = false;
  try {
    s.loss_of(++s.steps, 0, 1).backward();
  } catch (const oslo::Error&) {
    throw;
  } catch (const std::exception&) {
    threw = true;
  }
  if (hook) p.remove_hook(*hook);
  s.model->behind_block = nullptr;
  s.device.note("threw", threw ? 1.0 : 0.0);
  // Which parameters had a gradient by then differs, which zeros in place of nothing would show.
  s.optimizer->zero_grad();
}

/// Whether data ranks may take other ways. Who averages by hand would wait for gradients that
/// others do not have.
inline bool may_part_ways(const Session& s) {
  return s.setting.averaging == Averaging::ddp && s.setting.rule != Rule::lbfgs;
}

/// Layer drop by a seed of the data rank's own, or forwards that end early: where weights are
/// gathered, which refuses both, ranks would wait for those that have ended.
inline void leave_out_blocks(Session& s, const Numbers& n) {
  if (!may_part_ways(s)) return;
  s.optimizer->zero_grad();
  ++s.steps;
  const int replicas = s.device.mesh().data;
  const bool gathers = s.setting.stage == 3 && !s.setting.one_copy;
  const bool ends = n[1] % 3 == 0 && !gathers;
  const auto leave_out = [&](int rank) {  // one of them leaves out none
    const size_t block = static_cast<size_t>(n[0] + rank) % (s.model->blocks.size() + 1);
    (ends ? s.model->ends_at : s.model->left_out) = block;
  };
  if (s.device.is_parallel()) {
    leave_out(s.device.data_rank());
    s.loss_of_rows(s.device.part(s.batch(s.steps)), s.device.part(s.labels(s.steps)), false)
        .backward();
  } else {
    for (int rank = 0; rank < replicas; ++rank) {
      leave_out(rank);
      const Tensor x = s.batch(s.steps).tensor_split(replicas)[rank];
      const Tensor y = s.labels(s.steps).tensor_split(replicas)[rank];
      (s.loss_of_rows(x, y, false) / replicas).backward();
    }
  }
  s.model->left_out.reset();
  s.model->ends_at.reset();
  s.device.note_gradients("by other ways", *s.model);
  s.step();
}

}  // namespace history::habits
