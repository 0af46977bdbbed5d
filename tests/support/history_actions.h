#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "tests/support/history_habits.h"
#include "tests/support/history_paths.h"
#include "tests/support/history_scaling.h"

// What a user does between two training steps, as text and as code. `%0`, `%1` in a text are the
// numbers that the action was given.
namespace history {

struct Action {
  const char* text;
  int weight;
  std::function<void(Session&, const Numbers&)> run;
  bool own_graph = false;  ///< a backward that DistributedDataParallel cannot see
};

inline const std::vector<Action>& actions() {
  using S = Session&;
  using N = const Numbers&;
  static const std::vector<Action> table = {
      {"optimizer.zero_grad(set_to_none %1); backward of a batch in %0 % 3 + 1 parts; "
       "optimizer.step()",
       24,
       [](S s, N n) {
         s.backward(n[0] % 3 + 1, n[1] % 2 == 0);
         s.device.note_gradients("model", *s.model);
         s.step();
         if (s.scheduler) s.scheduler->step();
       }},
      {"zero_grad; backward; clip gradients in way %0; optimizer.step()", 14,
       [](S s, N n) {
         s.backward(1, n[1] % 2 == 0);
         habits::clip(s, n[0]);
         s.device.note_gradients("clipped", *s.model);
         s.step();
       }},
      {"zero_grad; backward; write the gradients in way %0; optimizer.step()", 6,
       [](S s, N n) {
         s.backward(1, n[1] % 2 == 0);
         habits::write_gradients(s, n);
         s.device.note_gradients("written", *s.model);
         s.step();
       }},
      {"scaled backward, with overflow in a data rank's loss if %0 % 3 == 0; scaler.step(); "
       "update()",
       6, habits::scaled_step},
      {"backward without zero_grad (twice)", 3,
       [](S s, N) {
         s.backward(1, true);
         if (s.setting.averaging != Averaging::ddp) s.accumulate(1);
         s.device.note_gradients("twice", *s.model);
       }},
      {"optimizer.step() on what gradients there are", 2, [](S s, N) { s.step(); }},
      {"descend by hand in way %0", 4,
       [](S s, N n) {
         habits::descend_by_hand(s, n);
         s.device.note_state("model", *s.model);
       }},
      {"write parameter %0 in way %1", 6,
       [](S s, N n) {
         habits::write_weight(s, n);
         s.device.note_state("model", *s.model);
       }},
      {"evaluate", 4,
       [](S s, N) {
         s.model->eval();
         {
           const torch::NoGradGuard no_grad;
           const auto autocast = s.guard();
           const Tensor logits = s.forward(s.device.part(s.batch(40)));
           s.device.note_rows("evaluated", logits);
           s.device.note_rows("softmax", torch::softmax(logits, -1));
           // Of logits that differ by more than roundings: a weight may have been filled with one
           // number.
           const Tensor best = (logits.to(torch::kDouble) * 1e6).round().argmax(-1);
           s.device.note_mean("accuracy",
                              best.eq(s.device.part(s.labels(40))).to(torch::kDouble).mean());
         }
         s.model->train();
       }},
      {"learning rates times 0.5", 2,
       [](S s, N) {
         for (auto& group : s.optimizer->param_groups()) {
           group.options().set_lr(group.options().get_lr() * 0.5);
         }
       }},
      {"a new optimizer", 2, [](S s, N) { s.make_optimizer(); }},
      {"parameter %0 .requires_grad_(%1 % 2)", 4,
       [](S s, N n) {
         s.parameter(n[0]).requires_grad_(n[1] % 2 == 1);
         if (!s.parameter(n[0] + 1).requires_grad()) s.parameter(n[0] + 1).requires_grad_(true);
         s.wrap();
       }},
      {"only one in %0 % 3 + 1 parameters is trained, from %1 on", 4, habits::train_some},
      {"model->to(kDouble); to(kCPU); train(); zero_grad()", 2,
       [](S s, N n) {
         s.model->to(torch::kDouble);
         s.model->to(torch::Device(torch::kCPU));
         s.model->train();
         s.model->zero_grad(n[0] % 2 == 0);
       }},
      {"save in way %0, spoil, load", 3, habits::save_and_load},
      {"norms and means of parameter %0 and its gradient", 3,
       [](S s, N n) {
         const Tensor p = s.parameter(n[0]);
         const auto look = [&](const Tensor& t) {
           s.device.note("norm", t.norm().item<double>());
           s.device.note("mean", t.mean().item<double>());
           s.device.note("largest", t.abs().max().item<double>());
           s.device.note("std", t.flatten().std(false).item<double>());
         };
         look(p.detach());
         if (p.grad().defined()) look(p.grad());
       }},
      {"the average follows in way %0", 4, habits::follow},
      {"loss + 0.01 * squares of all weights; optimizer.step()", 3,
       [](S s, N) {
         s.optimizer->zero_grad();
         Tensor loss = s.loss_of(++s.steps, 0, 1);
         for (const auto& item : s.model->named_parameters()) {
           // LibTorch's reducer refuses one that the loss uses and the forward does not.
           const bool forward_uses = std::ranges::count(s.model->left_behind, item.key()) == 0;
           if (forward_uses || s.setting.averaging != Averaging::ddp) {
             loss = loss + 0.01 * item.value().pow(2).sum();
           }
         }
         loss.backward();
         s.exchange();
         s.device.note_gradients("with penalty", *s.model);
         s.step();
       }},
      {"autograd::grad of all weights, then descend", 3,
       [](S s, N) {
         ++s.steps;
         Tensors wanted;
         for (const Tensor& p : s.model->parameters()) {
           if (p.requires_grad()) wanted.push_back(p);
         }
         const Tensors gradients = torch::autograd::grad({s.loss_of(s.steps, 0, 1)}, wanted, {},
                                                         std::nullopt, false, true);
         for (size_t i = 0; i < wanted.size(); ++i) {
           wanted[i].mutable_grad() = gradients[i].defined() ? gradients[i].detach() : gradients[i];
         }
         s.exchange();
         s.device.note_gradients("by grad", *s.model);
         s.step();
       },
       true},
      {"penalty on the gradient's norm (create_graph); optimizer.step()", 3,
       [](S s, N) {
         ++s.steps;
         s.optimizer->zero_grad();
         const Tensor p = s.parameter(0);
         const Tensor loss = s.loss_of(s.steps, 0, 1);
         if (s.device.mesh().data == 1 && p.requires_grad()) {
           const Tensor gradient = torch::autograd::grad({loss}, {p}, {}, true, true)[0];
           s.device.note("first gradient", gradient);
           (loss + gradient.pow(2).sum()).backward();
         } else {
           loss.backward();
         }
         s.exchange();
         s.device.note_gradients("penalized", *s.model);
         s.step();
       },
       true},
      {"backward twice through one graph (retain_graph)", 2,
       [](S s, N) {
         ++s.steps;
         s.optimizer->zero_grad();
         const Tensor loss = s.loss_of(s.steps, 0, 1);
         loss.backward({}, true);
         loss.backward();
         s.exchange();
         s.device.note_gradients("twice", *s.model);
         s.step();
       },
       true},
      {"a step of the user's own optimizer, %0 % 4", 6, habits::step_of_their_own},
      {"sharpness-aware step", 3, [](S s, N) { habits::sharpness_aware(s); }},
      {"keep the weights in memory, or take them back in way %0 % 4", 4, habits::keep_in_memory},
      {"parameter %0 .register_hook(half the gradient); a step; the hook is removed", 3,
       [](S s, N n) {
         Tensor p = s.parameter(n[0]);
         if (!p.requires_grad()) return;
         const auto handle = p.register_hook([](Tensor g) { return g * 0.5; });
         s.backward(1, true);
         s.device.note_gradients("hooked", *s.model);
         p.remove_hook(handle);
         s.step();
       }},
      {"the norm of all gradients by cat; gradients let go of", 3,
       [](S s, N) {
         s.backward(1, true);
         Tensors flat;
         for (const Tensor& p : s.model->parameters()) {
           if (p.grad().defined()) flat.push_back(p.grad().flatten());
         }
         s.device.note("norm", torch::cat(flat).norm());
         for (const Tensor& p : s.model->parameters()) p.mutable_grad().reset();
       }},
      {"a pass that throws in place %1 at %0; zero_grad", 5, habits::throw_in_a_pass},
      {"each data rank leaves out a block of its own, from %0 on (or ends there, where 3 divides "
       "%1); "
       "optimizer.step()",
       5, habits::leave_out_blocks},
      {"a loss that nobody asks the gradient of", 2, [](S s, N) { s.loss_of(++s.steps, 0, 1); }},
      {"words one after the other, each the likeliest", 3,
       [](S s, N) {
         const torch::NoGradGuard no_grad;
         Tensor x = s.batch(50);
         s.model->eval();
         for (int i = 0; i < 2 && s.setting.net.tokens; ++i) {
           const Tensor logits = s.model->forward(x).select(1, -1);
           const auto [values, places] = logits.topk(2, -1);
           s.device.note("largest logits", values);
           // Of two that are alike either may be the likeliest.
           if ((values.select(-1, 0) - values.select(-1, 1)).min().item<double>() < 1e-6) break;
           x = torch::cat({x.slice(1, 1), oslo::full_tensor(places).slice(1, 0, 1)}, 1);
         }
         s.device.note("words", x);
         s.model->train();
       }},
      {"parameters_to_vector", 2,
       [](S s, N) {
         const torch::NoGradGuard no_grad;
         const Tensor all = torch::nn::utils::parameters_to_vector(s.model->parameters());
         s.device.note("norm of all", all.norm());
       }},
  };
  return table;
}

/// Whether what it computes outside of a forward and its loss is no operator of those: under a
/// guard around them on one device it is none either.
inline bool keeps_to_forwards(const Action& action) {
  for (const char* others : {"loss + 0.01", "words one", "penalty on", "sharpness", "save in",
                             "keep the weights", "the average", "model->to", "a step of the user",
                             "norms and means", "descend by hand", "parameters_to_vector"}) {
    if (std::string(action.text).starts_with(others)) return false;
  }
  return true;
}

}  // namespace history
