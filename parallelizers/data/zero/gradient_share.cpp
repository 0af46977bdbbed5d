#include "parallelizers/data/zero/gradient_share.h"

#include <ATen/ATen.h>
#include <ATen/core/VariableHooksInterface.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <mutex>
#include <numeric>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

/// One a parameter; the hook has it.
struct Aside {
  GradientSharePtr share;
  std::mutex mutex;
  at::Tensor part = {};
  bool held = false;
};

bool is_part(const at::Tensor& gradient, const GradientShare& share) {
  if (!gradient.defined() || gradient.is_sparse()) return false;
  const Mark* const mark = mark_of(gradient);
  if (mark == nullptr) return false;
  // More pipeline stages may hold the parameter than when it was shared out.
  Layout lies = *share.layout;
  lies.set_stages(mark->layout->stages());
  return *mark->layout == lies;
}

at::Tensor as_part(const at::Tensor& parameter, const at::Tensor& rows,
                   const GradientShare& share) {
  if (mark_of(parameter) != nullptr) return marked_gradient(rows, parameter);
  const at::Tensor part = rows.detach();
  mark_in_place(part, share.layout, share.name);
  return part;
}

/// What a pass that did not exchange has added up is this rank's alone.
void add_to_whole(const at::Tensor& whole, const at::Tensor& part, const GradientShare& share) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const int rank = share.replicas->rank();
  const int64_t start = std::accumulate(share.rows.begin(), share.rows.begin() + rank, int64_t(0));
  plain_values(whole)
      .narrow(share.dim, start, share.rows[rank])
      .add_(plain_values(part), share.replicas->size());
}

void put_back(const at::Tensor& parameter, Aside& aside) {
  const std::lock_guard<std::mutex> lock(aside.mutex);
  at::Tensor& gradient = parameter.mutable_grad();
  if (!aside.part.defined() || (gradient.defined() && aside.held)) return;
  const at::Tensor part = std::exchange(aside.part, at::Tensor());
  if (!gradient.defined()) {
    gradient = part;
  } else {
    add_to_whole(gradient, part, *aside.share);
  }
}

/// Sees to a part that nobody has taken when it is called, or else, after a pass that threw, when
/// the pass lets go of it.
class PutsBack {
 public:
  PutsBack(c10::weak_intrusive_ptr<c10::TensorImpl> parameter, std::shared_ptr<Aside> aside)
      : parameter_(std::move(parameter)), aside_(std::move(aside)) {}
  ~PutsBack() {
    try {
      run();
    } catch (const std::exception&) {  // what the pass threw is on its way
    }
  }
  PutsBack(const PutsBack&) = delete;
  PutsBack& operator=(const PutsBack&) = delete;

  void run() {
    if (std::exchange(done_, true)) return;
    auto impl = parameter_.lock();
    if (impl) put_back(at::Tensor(std::move(impl)), *aside_);
  }

 private:
  const c10::weak_intrusive_ptr<c10::TensorImpl> parameter_;
  const std::shared_ptr<Aside> aside_;
  bool done_ = false;
};

/// In the form in which users' hooks are kept: LibTorch lets go of others with the first of these.
struct SetsPartAside {
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
  std::shared_ptr<Aside> aside;

  at::TensorBase operator()(const at::TensorBase& /*gradient*/) const {
    auto impl = parameter.lock();
    if (impl) set_aside(at::Tensor(std::move(impl)));
    return {};
  }

 private:
  void set_aside(const at::Tensor& own) const {
    const GradientShare& share = *aside->share;
    at::Tensor& gradient = own.mutable_grad();
    if (!gradient.defined()) return;
    if (placed_impl(gradient) != nullptr) take_assigned(own, gradient);
    if (!is_part(gradient, share)) {
      const Mark* const lies = gradient.is_sparse() ? nullptr : mark_of(gradient);
      const Mark* const mark = mark_of(own);
      const bool as_own = lies == nullptr || (mark != nullptr && *lies->layout == *mark->layout);
      OSLO_CHECK(as_own, "the gradient of ", share.name,
                 " was shared out otherwise than ZeroOptimizer does it now (",
                 lies->layout->to_string(), "); call zero_grad() before this backward");
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(aside->mutex);
      aside->part = std::exchange(gradient, at::Tensor());
    }
    // Callbacks run in the order in which they were queued: after those of exchanges, which are
    // queued when a gradient has come.
    const auto puts = std::make_shared<PutsBack>(parameter, aside);
    torch::autograd::Engine::get_default_engine().queue_callback([puts] {
      torch::autograd::Engine::get_default_engine().queue_callback([puts] { puts->run(); });
    });
  }

  /// `p.mutable_grad() = p.grad() * 0.5` of a part.
  void take_assigned(const at::Tensor& own, at::Tensor& gradient) const {
    const LayoutPtr lies = placed_impl(gradient)->value().layout;
    if (!over_same_ranks(lies->context(), aside->share->layout->context())) return;
    gradient =
        as_part(own, local_in(at::Tensor(gradient), aside->share->layout).detach(), *aside->share);
  }
};

template <typename Use>
void for_hook(const at::Tensor& parameter, const Use& use) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(parameter);
  if (meta == nullptr || !meta->cpp_hooks_list_) return;
  unsigned index = 0;
  for (auto& hook : *meta->cpp_hooks_list_) {
    const auto* const ours = hook.template target<SetsPartAside>();
    if (ours != nullptr) return use(*ours, index);
    ++index;
  }
}

std::shared_ptr<Aside> aside_of(const at::Tensor& parameter) {
  std::shared_ptr<Aside> found;
  for_hook(parameter, [&](const SetsPartAside& hook, unsigned) { found = hook.aside; });
  return found;
}

void set_gradient_layout(const at::Tensor& parameter, const LayoutPtr& layout) {
  if (mark_of(parameter) != nullptr) set_layouts(parameter, layout, layouts_of(parameter).state);
}

}  // namespace

void share_gradient(const at::Tensor& parameter, GradientSharePtr share) {
  if (const auto before = aside_of(parameter)) share_no_gradient(parameter, before->share);
  set_gradient_layout(parameter, share->layout);
  auto aside = std::make_shared<Aside>();
  aside->share = std::move(share);
  at::impl::GetVariableHooks()->_register_hook(
      parameter,
      SetsPartAside{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                    std::move(aside)});
}

void share_no_gradient(const at::Tensor& parameter, const GradientSharePtr& share) {
  for_hook(parameter, [&](const SetsPartAside& hook, unsigned index) {
    if (hook.aside->share != share) return;
    at::impl::GetVariableHooks()->remove_hook(parameter, index);
    if (const Mark* const mark = mark_of(parameter)) {
      auto layout = std::make_shared<Layout>(*mark->layout);
      layout->set_followed(false);
      set_gradient_layout(parameter, mark->layout->followed() ? layout : mark->layout);
    }
  });
}

GradientSharePtr gradient_share(const at::Tensor& parameter) {
  const auto aside = aside_of(parameter);
  return aside ? aside->share : nullptr;
}

bool has_part(const at::Tensor& parameter) {
  const GradientSharePtr share = gradient_share(parameter);
  return share && is_part(parameter.grad(), *share);
}

at::Tensor take_part(const at::Tensor& parameter) {
  const auto aside = aside_of(parameter);
  if (!aside) return {};
  if (is_part(parameter.grad(), *aside->share)) {
    return std::exchange(parameter.mutable_grad(), at::Tensor());
  }
  const std::lock_guard<std::mutex> lock(aside->mutex);
  return std::exchange(aside->part, at::Tensor());
}

void give_part(const at::Tensor& parameter, const at::Tensor& rows) {
  const auto aside = aside_of(parameter);
  at::Tensor part = is_part(rows, *aside->share) ? rows : as_part(parameter, rows, *aside->share);
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) {
    gradient = std::move(part);
    return;
  }
  const std::lock_guard<std::mutex> lock(aside->mutex);
  aside->part = std::move(part);
}

void hold_part(const at::Tensor& parameter, bool held) {
  const auto aside = aside_of(parameter);
  if (!aside) return;
  aside->held = held;
  if (!held) put_back(parameter, *aside);
}

}  // namespace oslo
