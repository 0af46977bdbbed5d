#pragma once

#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallelizers/placement/layout/value.h"
#include "tests/resharding_test/resharding_layouts.h"
#include "tests/support/seeded.h"

// Optimizers whose states were drawn, so that each element says where it belongs.
namespace oslo::resharding_test {

enum class Kind { adamw, sgd };
inline constexpr Kind kKinds[] = {Kind::adamw, Kind::sgd};

/// Two groups: what has two dimensions, and the rest at a tenth of the learning rate.
inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(Kind kind, const Gpt2& model,
                                                               double rate = 1e-2) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  std::vector<torch::Tensor> matrices, others;
  for (const torch::Tensor& p : model->parameters())
    (p.dim() == 2 ? matrices : others).push_back(p);
  const auto groups = [&](const auto& options) {
    using Options = std::decay_t<decltype(options)>;
    auto slow = std::make_unique<Options>(options);
    slow->lr(rate / 10);
    std::vector<OptimizerParamGroup> both;
    both.emplace_back(matrices, std::make_unique<Options>(options));
    both.emplace_back(others, std::move(slow));
    return both;
  };
  if (kind == Kind::sgd) {
    const SGDOptions options = SGDOptions(rate).momentum(0.9);
    return std::make_unique<SGD>(groups(options), options);
  }
  const AdamWOptions options = AdamWOptions(rate).amsgrad(true);
  return std::make_unique<AdamW>(groups(options), options);
}

/// A state's count of steps and its tensors.
using StateParts = std::pair<int64_t, std::vector<torch::Tensor>>;

inline StateParts parts_of(const torch::optim::OptimizerParamState& state) {
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
    return {adamw->step(), {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()}};
  }
  return {0, {dynamic_cast<const torch::optim::SGDParamState&>(state).momentum_buffer()}};
}

/// An ordinary model and its optimizer, with other states than steps would leave: every third
/// parameter has none, the others have made different numbers of steps.
struct Known {
  explicit Known(Kind kind, double rate = 1e-2)
      : model(make_gpt2(1)), optimizer(make_optimizer(kind, model, rate)) {
    test::make_seeded(5, [&] {
      int64_t number = 0;
      for (const auto& [name, parameter] : in_use(model)) {
        if (++number % 3 == 0) continue;
        auto& state = optimizer->state()[parameter.unsafeGetTensorImpl()];
        const auto drawn = [like = parameter.detach()] { return torch::randn_like(like); };
        if (kind == Kind::sgd) {
          auto own = std::make_unique<torch::optim::SGDParamState>();
          own->momentum_buffer(drawn());
          state = std::move(own);
        } else {
          auto own = std::make_unique<torch::optim::AdamWParamState>();
          own->step(number);
          own->exp_avg(drawn());
          own->exp_avg_sq(drawn().abs());
          own->max_exp_avg_sq(drawn().abs());
          state = std::move(own);
        }
      }
      return 0;
    });
  }

  Gpt2 model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

/// The state of each parameter of `model` is that of `known`, bit for bit, and lies as the
/// parameter does; there is none where the parameter is not, nor where `known` has none.
inline void expect_states(const torch::optim::Optimizer& optimizer, const Gpt2& model,
                          const Known& known) {
  const auto plain = in_use(known.model);
  size_t count = 0;
  for (const auto& [name, parameter] : in_use(model)) {
    SCOPED_TRACE(name);
    const auto expected = known.optimizer->state().find(plain.at(name).unsafeGetTensorImpl());
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    const bool has = expected != known.optimizer->state().end() && is_here(parameter);
    ASSERT_EQ(found != optimizer.state().end(), has);
    if (!has) continue;
    ++count;
    const auto [steps, tensors] = parts_of(*found->second);
    const auto [expected_steps, wholes] = parts_of(*expected->second);
    EXPECT_EQ(steps, expected_steps);
    ASSERT_EQ(tensors.size(), wholes.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const LayoutPtr lies = layout(tensors[i]);
      EXPECT_EQ(lies, layout(parameter)) << "tensor " << i;
      const torch::Tensor own = lies ? local_part(wholes[i], *lies) : wholes[i];
      EXPECT_TRUE(torch::equal(local_tensor(tensors[i]), own)) << "tensor " << i;
    }
  }
  EXPECT_EQ(optimizer.state().size(), count);
}

/// Writes a folder of the known model and optimizer.
inline void save_known(Kind kind, const std::string& folder) {
  Known known(kind);
  InitializeOptions how;
  how.world = World::alone();
  const ParallelModel alone = initialize(known.model, GridCase{"one"}.config(), how);
  alone.save_parallelized(folder,
                          SaveOptions().optimizer(known.optimizer.get()).random_states(false));
}

/// The load of such a folder.
inline LoadOptions with_states(torch::optim::Optimizer& optimizer) {
  return LoadOptions().optimizer(&optimizer).random_states(false);
}

}  // namespace oslo::resharding_test
