#pragma once

#include <limits>

#include "tests/support/history_session.h"

// What users write around a training step, each in several ways.
namespace history::habits {

inline void clip(Session& s, int64_t how) {
  const auto parameters = s.model->parameters();
  const auto note = [&](double norm) { s.device.note("norm", norm); };
  switch (how % 6) {
    case 0:
      return note(torch::nn::utils::clip_grad_norm_(parameters, 0.3));
    case 1:
      return note(torch::nn::utils::clip_grad_norm_(parameters, 0.1,
                                                    std::numeric_limits<double>::infinity()));
    case 2:
      return note(torch::nn::utils::clip_grad_norm_(parameters, 2.0, 1.0));
    case 3:
      return torch::nn::utils::clip_grad_value_(parameters, 0.01);
    case 4:
      return note(s.parallel && !s.setting.amp  // which adds up in double
                      ? s.parallel->clip_grad_norm_(0.3)
                      : torch::nn::utils::clip_grad_norm_(parameters, 0.3));
    default: {
      Tensor total = torch::zeros({});
      for (const Tensor& p : parameters) {
        if (p.grad().defined()) total = total + p.grad().detach().pow(2).sum();
      }
      const double norm = total.sqrt().item<double>();
      note(norm);
      if (norm <= 0.2) return;
      for (const Tensor& p : parameters) {
        if (p.grad().defined()) p.grad().mul_(std::min(1.0, 0.2 / norm));
      }
    }
  }
}

inline void write_weight(Session& s, const Numbers& n) {
  const torch::NoGradGuard no_grad;
  Tensor p = s.parameter(n[0]);
  const auto whole = [&] {  // of the global shape
    return training::numbers(oslo::full_tensor(p).sizes(), double(n[2])) * 0.5;
  };
  switch (n[1] % 19) {
    case 9:
      p.masked_fill_(p.abs() < 0.1, 0.0);
      break;
    case 10: {  // prunes the smaller half
      const Tensor sorted = std::get<0>(p.abs().flatten().sort());
      p.mul_((p.abs() >= sorted[sorted.size(0) / 2]).to(p.dtype()));
      break;
    }
    case 11:
      p.copy_(torch::where(p > 0, p, 0.5 * p));
      break;
    case 12:
      if (p.dim() > 0) p.slice(0, 0, 1).copy_(p.slice(0, 1, 2));
      break;
    case 13:
      if (p.dim() > 1) p.select(1, 0).zero_();
      break;
    case 14:
      if (p.dim() > 0) p.index_fill_(0, torch::tensor({0}), 0.3);
      break;
    case 15:
      if (p.dim() == 2) p.diagonal().add_(0.1);
      break;
    case 16:
      if (p.dim() == 2) p.renorm_(2, 0, 0.5);
      break;
    case 17:
      torch::nn::init::constant_(p, 0.2);
      break;
    case 18:
      if (p.dim() == 2) p.copy_(p / p.norm(2, 1, true).clamp_min(0.1));
      break;
    case 0:
      p.mul_(0.9);
      break;
    case 1:
      p.clamp_(-0.3, 0.3);
      break;
    case 2:
      p.copy_(whole());
      break;
    case 3:
      p.add_(whole(), 0.1);
      break;
    case 4:
      p.fill_(0.1);
      break;
    case 5:
      if (p.dim() > 0) p[0].mul_(0.5);
      break;
    case 6:
      p.div_(p.norm() + 1.0);
      break;
    case 7:
      p.sub_(p.mean());
      break;
    default:
      p.data().mul_(1.1);
  }
}

inline void write_gradients(Session& s, const Numbers& n) {
  const torch::NoGradGuard no_grad;
  for (Tensor& p : s.model->parameters()) {
    if (!p.grad().defined()) continue;
    switch (n[0] % 8) {
      case 5:  // gradients that sum to zero
        if (p.dim() > 1) p.grad().sub_(p.grad().mean(1, true));
        break;
      case 6:
        p.mutable_grad() = p.grad().clamp(-0.05, 0.05).clone();
        break;
      case 7:
        if (p.grad().isfinite().all().item<bool>()) p.grad().div_(1 + p.grad().norm());
        break;
      case 0:
        p.grad().mul_(0.5);
        break;
      case 1:
        p.grad().add_(p, 0.01);
        break;
      case 2:
        p.mutable_grad() = p.grad() * 0.5;
        break;
      case 3:
        p.grad().clamp_(-0.05, 0.05);
        break;
      default:
        p.grad().copy_(p.grad() - p.grad().mean());
    }
  }
}

inline void descend_by_hand(Session& s, const Numbers& n) {
  s.backward(1, true);
  const torch::NoGradGuard no_grad;
  std::vector<const void*> done;
  for (Tensor& p : s.model->parameters()) {
    if (!p.grad().defined()) continue;
    if (std::ranges::count(done, p.unsafeGetTensorImpl()) > 0) continue;
    done.push_back(p.unsafeGetTensorImpl());
    switch (n[0] % 4) {
      case 0:
        p.sub_(0.1 * p.grad());
        break;
      case 1:
        p.add_(p.grad(), -0.1);
        break;
      case 2:
        p.data() -= 0.1 * p.grad().data();
        break;
      default:
        p.copy_(p - 0.1 * p.grad());
    }
  }
}

/// What people write into an optimizer of their own.
inline void step_of_their_own(Session& s, const Numbers& n) {
  s.backward(1, n[1] % 2 == 0);
  const torch::NoGradGuard no_grad;
  const auto parameters = s.model->parameters();
  if (s.momentum.size() != parameters.size()) {
    s.momentum.clear();
    for (const Tensor& p : parameters) s.momentum.push_back(torch::zeros_like(p));
  }
  std::vector<const void*> done;
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor p = parameters[i];
    const Tensor g = p.grad();
    Tensor& m = s.momentum[i];
    if (!g.defined() || std::ranges::count(done, p.unsafeGetTensorImpl()) > 0) continue;
    done.push_back(p.unsafeGetTensorImpl());
    switch (n[0] % 4) {
      case 0:
        m.mul_(0.9).add_(g);
        p.add_(m, -0.05);
        break;
      case 1:
        m = 0.9 * m + 0.1 * g;
        p.sub_(0.1 * m / (m.abs() + 0.1));
        break;
      case 2:
        m.mul_(0.9).addcmul_(g, g, 0.1);
        p.addcdiv_(g, m.abs().sqrt().add_(0.01), -0.01);
        break;
      default:  // LARS: the step's length follows the weight's
        p.add_(g * (p.norm() / (g.norm() + p.norm() + 1.0)), -0.1);
    }
  }
  s.device.note_state("model", *s.model);
}

/// Sharpness-aware: up along the gradient, a second gradient there, and back.
inline void sharpness_aware(Session& s) {
  s.backward(1, true);
  Tensors ways;
  const auto parameters = s.model->parameters();
  {
    const torch::NoGradGuard no_grad;
    Tensors norms;
    for (const Tensor& p : parameters) {
      if (p.grad().defined()) norms.push_back(p.grad().norm(2));
    }
    const Tensor scale = 0.05 / (torch::norm(torch::stack(norms), 2) + 1e-12);
    s.device.note("scale", scale);
    for (Tensor p : parameters) {
      ways.push_back(p.grad().defined() ? p.grad() * scale : Tensor());
      if (ways.back().defined()) p.add_(ways.back());
    }
  }
  s.backward(1, true);
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      Tensor p = parameters[i];
      if (ways[i].defined()) p.sub_(ways[i]);
    }
  }
  s.device.note_gradients("sharp", *s.model);
  s.step();
}

inline void keep_in_memory(Session& s, const Numbers& n) {
  const torch::NoGradGuard no_grad;
  const auto parameters = s.model->parameters();
  const bool first = s.best.size() != parameters.size();
  if (first) s.best.clear();
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor p = parameters[i];
    if (first) {
      s.best.push_back(n[1] % 2 ? p.detach().clone() : torch::empty_like(p).copy_(p));
      continue;
    }
    switch (n[0] % 4) {
      case 0:
        p.copy_(s.best[i]);
        break;
      case 1:
        s.best[i] = 0.5 * s.best[i] + 0.5 * p;
        break;
      case 2:
        s.best[i].mul_(0.5).add_(p, 0.5);
        break;
      default:
        p.add_(s.best[i] - p, 0.3);
    }
  }
  const auto named = s.model->named_parameters();
  for (size_t i = 0; i < named.size(); ++i) {
    if (std::ranges::count(s.model->left_behind, named[i].key()) > 0) continue;
    s.device.note("kept " + named[i].key(), s.best[i]);
  }
  s.device.note_state("model", *s.model);
}

inline void save_and_load(Session& s, const Numbers& n) {
  // One device keeps copies; what changes in between is lost on both.
  const torch::NoGradGuard no_grad;
  const bool merged = n[0] % 3 > 0;
  const std::string folder = s.folder + "/checkpoint" + std::to_string(n[2]);
  if (s.parallel) {
    oslo::SaveOptions options;
    options.merge_checkpoints(merged);
    if (n[0] % 3 == 2) options.format(n[1] % 2 ? "bin" : "safetensors");
    s.parallel->save_parallelized(folder, options);
  }
  std::map<std::string, Tensor> kept;
  for (const auto& item : s.model->named_parameters()) kept[item.key()] = item.value().clone();
  for (const auto& item : s.model->named_buffers()) kept[item.key()] = item.value().clone();
  for (auto& item : s.model->named_parameters()) {  // a checkpoint has what is in use
    if (std::ranges::count(s.model->left_behind, item.key()) == 0) item.value().mul_(0.5);
  }
  if (s.parallel) {
    s.parallel->from_parallelized(folder);
  } else {
    for (auto& item : s.model->named_parameters()) item.value().copy_(kept[item.key()]);
    for (auto& item : s.model->named_buffers()) item.value().copy_(kept[item.key()]);
  }
  s.device.note_state("loaded", *s.model);
  if (!merged) return;
  // The merged file goes into a model of one device.
  Net other = s.make(5);
  for (auto& item : other->named_buffers()) {  // to() makes numbers of counts, too
    item.value().set_data(item.value().to(kept[item.key()].scalar_type()));
  }
  if (s.parallel) {
    oslo::load_state(*other, folder);
  } else {
    for (auto& item : other->named_parameters()) item.value().copy_(kept[item.key()]);
    for (auto& item : other->named_buffers()) item.value().copy_(kept[item.key()]);
  }
  s.device.note_state("on one device", *other);
  other->eval();
  s.device.note("its logits", other->forward(s.batch(3)));
}

inline void follow(Session& s, const Numbers& n) {
  if (!s.average) return;
  const torch::NoGradGuard no_grad;
  auto to = s.average->parameters();
  const auto from = s.model->parameters();
  for (size_t i = 0; i < to.size(); ++i) {
    switch (n[0] % 4) {
      case 0:
        to[i].mul_(0.9).add_(from[i], 0.1);
        break;
      case 1:
        to[i].copy_(from[i]);
        break;
      case 2:
        to[i].lerp_(from[i], 0.25);
        break;
      default:
        to[i].copy_(0.5 * to[i] + 0.5 * from[i]);
    }
  }
  s.device.note_state("average", *s.average);
}

}  // namespace history::habits
