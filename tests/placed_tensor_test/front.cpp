// The place of a placed tensor in autograd's graph, which is made when somebody looks.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <thread>
#include <vector>

#include "tests/support/cube.h"
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::HasSubstr;

TEST(Front, IsMadeWhenSomebodyLooks) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor y = placed(leaf(numbers({5, 4})), mpu, 1) * 2;
    EXPECT_TRUE(y.requires_grad());
    EXPECT_FALSE(y.is_leaf());
    EXPECT_FALSE(y.retains_grad());
    EXPECT_EQ(y.output_nr(), 0);
    const auto node = y.grad_fn();
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(node->name(), "OsloPlaced");
    EXPECT_EQ(y.grad_fn(), node);
    EXPECT_FALSE(y.is_leaf());
    // Its number is not that of the moment of the look.
    EXPECT_EQ(node->sequence_nr(), node->next_edge(0).function->sequence_nr());
    EXPECT_EQ((leaf(numbers({5, 4})) * 2).grad_fn()->name(), "MulBackward1");
    const torch::NoGradGuard no_grad;
    EXPECT_EQ((y * 2).grad_fn(), nullptr);
    EXPECT_TRUE((y * 2).is_leaf());
  });
}

TEST(Front, ThreadsThatLookTogetherSeeOne) {
  on_ranks(1, [](const MPU& mpu) {
    (void)mpu;
    const MPU two(World::fake(0, 2), MpuOptions().tensor_parallel_size(2));
    for (int round = 0; round < 50; ++round) {
      const Tensor local = leaf(numbers({5, 2})) * 2;
      const Tensor y = from_local(local, two.tensor_mesh(), {Placement::shard(1)}, {5, 4});
      std::vector<oslo::NodePtr> seen(4);
      std::vector<std::thread> threads;
      for (auto& node : seen) threads.emplace_back([&] { node = y.grad_fn(); });
      for (std::thread& thread : threads) thread.join();
      for (const auto& node : seen) EXPECT_EQ(node, seen[0]);
      EXPECT_NE(seen[0], nullptr);
    }
  });
}

/// Twice its input, at a node of its own.
struct Double : torch::autograd::Function<Double> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2};
  }
};

TEST(Front, ThreadsThatComputeTogetherLeadToOnePlace) {
  const MPU two(World::fake(0, 2), MpuOptions().tensor_parallel_size(2));
  for (int round = 0; round < 50; ++round) {
    const Tensor local = leaf(numbers({5, 2}));
    const Tensor x = from_local(local, two.tensor_mesh(), {Placement::shard(1)}, {5, 4});
    const Tensor y = Double::apply(x);
    std::vector<Tensor> products(4);
    std::vector<std::thread> threads;
    for (Tensor& product : products) threads.emplace_back([&] { product = y.square(); });
    for (std::thread& thread : threads) thread.join();
    const auto leads_to = [](const Tensor& product) {
      return local_tensor(product).grad_fn()->next_edge(0).function;
    };
    EXPECT_EQ(leads_to(products[0])->name(), "OsloBridge");
    for (const Tensor& product : products) {
      EXPECT_EQ(leads_to(product), leads_to(products[0]));
      local_tensor(product).sum().backward();
    }
    expect_close(local.grad(), 4 * 8 * local.detach(), "of four squares of doubles");
  }
}

/// What a hook and a retained gradient saw, in order.
using Seen = std::vector<Tensor>;

TEST(Front, IsThatOfTheTensorAsItIs) {
  on_ranks(2, [](const MPU& mpu) {
    const auto expect = [&](const char* name,
                            const std::function<void(const Tensor&, Seen&)>& change) {
      const auto run = [&](const Tensor& x, bool backward_from_it) {
        Seen seen;
        const Tensor y = x * 2;
        change(y, seen);
        if (backward_from_it) {
          y.backward(numbers({5, 4}, 3.0));
        } else {
          y.pow(2).sum().backward();
        }
        if (y.retains_grad()) seen.push_back(y.grad());
        return seen;
      };
      for (const bool from_it : {true, false}) {
        for (const int64_t dim : {0, 1}) {
          const Tensor w = leaf(numbers({5, 4})), own = leaf(w);
          const Seen expected = run(w, from_it), actual = run(placed(own, mpu, dim), from_it);
          const std::string what = c10::str(name, ", cut at ", dim, from_it ? ", from it" : "");
          expect_close(own.grad(), w.grad(), what);
          ASSERT_EQ(actual.size(), expected.size()) << what;
          for (size_t i = 0; i < actual.size(); ++i) expect_close(actual[i], expected[i], what);
        }
      }
    };
    const auto hook = [](const Tensor& y, Seen& seen) {
      y.register_hook([&seen](const Tensor& gradient) { seen.push_back(gradient * 1); });
    };
    const auto through_a_view = [](const Tensor& y) { y.view({5, 2, 2}).mul_(3); };
    const auto unrecorded = [](const Tensor& y) {
      const torch::NoGradGuard no_grad;
      y.mul_(3);
    };
    expect("untouched", [](const Tensor&, Seen&) {});
    expect("written", [](const Tensor& y, Seen&) { y.mul_(3); });
    expect("written through a view", [&](const Tensor& y, Seen&) { through_a_view(y); });
    expect("looked at, then written through a view", [&](const Tensor& y, Seen&) {
      EXPECT_NE(y.grad_fn(), nullptr);
      through_a_view(y);
    });
    expect("kept, then written", [](const Tensor& y, Seen&) {
      y.retain_grad();
      y.mul_(3);
    });
    expect("kept, then written through a view", [&](const Tensor& y, Seen&) {
      y.retain_grad();
      through_a_view(y);
    });
    expect("kept, then written unrecorded", [&](const Tensor& y, Seen&) {
      y.retain_grad();
      unrecorded(y);
    });
    expect("hooked, then written", [&](const Tensor& y, Seen& seen) {
      hook(y, seen);
      y.mul_(3);
    });
    expect("hooked, then written through a view", [&](const Tensor& y, Seen& seen) {
      hook(y, seen);
      through_a_view(y);
    });
    expect("hooked, then written unrecorded", [&](const Tensor& y, Seen& seen) {
      hook(y, seen);
      unrecorded(y);
    });
    expect("hooked before and after a write", [&](const Tensor& y, Seen& seen) {
      hook(y, seen);
      y.mul_(3);
      hook(y, seen);
      through_a_view(y);
    });
    expect("viewed, hooked, then written through the view", [&](const Tensor& y, Seen& seen) {
      const Tensor view = y.view({5, 2, 2});
      hook(y, seen);
      view.mul_(3);
    });
    expect("hooked, used, then written through a view", [&](const Tensor& y, Seen& seen) {
      hook(y, seen);
      seen.push_back(y.sin().sum());
      through_a_view(y);
    });
    expect("viewed, hooked, used, then written through the view", [&](const Tensor& y, Seen& seen) {
      const Tensor view = y.view({5, 2, 2});
      hook(y, seen);
      seen.push_back(y.sin().sum());
      view.mul_(3);
    });
    expect("kept, used, written, viewed, written", [&](const Tensor& y, Seen& seen) {
      y.retain_grad();
      seen.push_back(y.sin().sum());
      y.add_(1);
      const Tensor view = y.view({5, 2, 2});
      seen.push_back(y.sin().sum());
      view.mul_(3);
      seen.push_back(y.sin().sum());
    });
    expect("viewed, kept, used, then written through both views", [&](const Tensor& y, Seen& seen) {
      const Tensor earlier = y.view({5, 2, 2});
      y.retain_grad();
      seen.push_back(y.sin().sum());
      y.view({5, 2, 2}).mul_(3);
      earlier.mul_(3);
    });
    expect("used, then hooked", [&](const Tensor& y, Seen& seen) {
      seen.push_back(y.sin().sum());
      y.register_hook([](const Tensor& gradient) { return gradient * 2; });
      hook(y, seen);
    });
    expect("hooked, and the hook removed", [&](const Tensor& y, Seen& seen) {
      const auto position = y.register_hook([](const Tensor& gradient) { return gradient * 2; });
      hook(y, seen);
      y.remove_hook(position);
    });
  });
}

TEST(Front, ALeafIsNotWrittenWhileItsGradientIsRecorded) {
  on_ranks(2, [](const MPU& mpu) {
    const auto refuses = [](const Tensor& leaf) {
      EXPECT_TRUE(leaf.is_leaf());
      EXPECT_THAT(error_of([&] { leaf.mul_(2); }), HasSubstr("leaf")) << layout(leaf);
      EXPECT_THAT(error_of([&] { leaf.view({5, 2, 2}).mul_(2); }), HasSubstr("leaf"));
      {
        const torch::NoGradGuard no_grad;
        leaf.view({5, 2, 2}).add_(1);
        leaf.mul_(2);
      }
      leaf.pow(2).sum().backward();
      return leaf.grad();
    };
    const Tensor x = placed(numbers({5, 4}), mpu, 1).requires_grad_();
    expect_close(refuses(x), refuses(leaf(numbers({5, 4}))), "gradient");
  });
}

TEST(Front, OfAViewThatHadToGatherIsRefusedAfterAWrite) {
  on_ranks(2, [](const MPU& mpu) {
    for (const bool looked : {false, true}) {
      const Tensor x = placed(leaf(numbers({4, 6})), mpu, 0) * 1, view = x.select(0, 1);
      if (looked) {
        EXPECT_NE(view.grad_fn(), nullptr);
      }
      x.mul_(2);
      EXPECT_THAT(error_of([&] { view.backward(numbers({6})); }), HasSubstr("clone()")) << looked;
      const Tensor w = leaf(numbers({4, 6})), own = leaf(w);
      const auto run = [](const Tensor& leaf) {
        const Tensor all = leaf * 1, row = all.select(0, 1);
        all.mul_(2);
        row.clone().backward(numbers({6}));
      };
      run(w);
      run(placed(own, mpu, 0));
      expect_close(own.grad(), w.grad(), "through an operator");
    }
  });
}

/// Triples its input in place.
struct Triple : torch::autograd::Function<Triple> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x) {
    x.mul_(3);
    context->mark_dirty({x});
    return x;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    return {gradients[0] * 3};
  }
};

TEST(Front, AUsersFunctionThatWritesItsInput) {
  on_ranks(2, [](const MPU& mpu) {
    const auto expect = [&](const char* name, const std::function<Seen(const Tensor&)>& run) {
      for (const int64_t dim : {0, 1}) {
        const Tensor w = leaf(numbers({5, 4})), own = leaf(w);
        const Seen expected = run(w * 2), actual = run(placed(own, mpu, dim) * 2);
        expect_close(own.grad(), w.grad(), name);
        ASSERT_EQ(actual.size(), expected.size()) << name;
        for (size_t i = 0; i < actual.size(); ++i) expect_close(actual[i], expected[i], name);
      }
    };
    expect("alone", [](const Tensor& y) -> Seen {
      Triple::apply(y).pow(2).sum().backward();
      return {};
    });
    expect("a view taken before", [](const Tensor& y) -> Seen {
      const Tensor view = y.view({5, 2, 2});
      Triple::apply(y);
      view.pow(2).sum().backward();
      return {};
    });
    expect("a view taken before, then written", [](const Tensor& y) -> Seen {
      const Tensor view = y.view({5, 2, 2});
      Triple::apply(y);
      view.mul_(2);
      y.pow(2).sum().backward();
      return {};
    });
    expect("its gradient retained", [](const Tensor& y) -> Seen {
      y.retain_grad();
      Triple::apply(y);
      y.pow(2).sum().backward();
      return {y.grad()};
    });
    expect("its gradient retained, used, and written again", [](const Tensor& y) -> Seen {
      y.retain_grad();
      const Tensor before = y.sum();
      Triple::apply(y);
      y.mul_(2);
      (before + y.pow(2).sum()).backward();
      return {y.grad()};
    });
  });
}

TEST(Front, OfATensorFilledThroughViews) {
  on_ranks(2, [](const MPU& mpu) {
    const auto run = [](const Tensor& x, Tensor filled) {
      filled.view({5, 2, 2}).mul_(x.view({5, 2, 2}));
      EXPECT_TRUE(filled.requires_grad());
      EXPECT_FALSE(filled.is_leaf());
      test::Cube::apply(filled).sum().backward();
    };
    const Tensor w = leaf(numbers({5, 4})), own = leaf(w);
    run(w, numbers({5, 4}).clone());
    run(placed(own, mpu, 0), placed(numbers({5, 4}), mpu, 0) * 1);
    expect_close(own.grad(), w.grad(), "gradient");
  });
}

TEST(Front, GoesWithTheGradient) {
  on_ranks(2, [](const MPU& mpu) {
    for (const bool looked : {false, true}) {
      const Tensor y = placed(leaf(numbers({5, 4})), mpu, 0) * 2;
      EXPECT_THAT(error_of([&] { y.set_grad_dtype(torch::kFloat); }), HasSubstr("leaf"));
      const Tensor z = y * 2;
      if (looked) {
        EXPECT_NE(z.grad_fn(), nullptr);
      }
      z.detach_();
      EXPECT_FALSE(z.requires_grad());
      EXPECT_TRUE(z.is_leaf());
      EXPECT_EQ(z.grad_fn(), nullptr);
      z.requires_grad_();
      z.pow(2).sum().backward();
      expect_close(z.grad(), numbers({5, 4}) * 8, "a leaf from then on");
    }
  });
}

TEST(Front, GoesWithTheGradientOfAUsersFunctionToo) {
  on_ranks(2, [](const MPU& mpu) {
    for (const bool used : {false, true}) {
      const Tensor y = test::Cube::apply(placed(leaf(numbers({5, 4})), mpu, 0) * 2);
      if (used) {
        EXPECT_TRUE((y * 2).requires_grad());
      }
      y.detach_();
      EXPECT_FALSE(y.requires_grad());
      EXPECT_TRUE(y.is_leaf());
      EXPECT_FALSE((y * 2).requires_grad());
    }
  });
}

TEST(Front, KeepsNoGraphAlive) {
  on_ranks(2, [](const MPU& mpu) {
    for (const bool of_a_function : {false, true}) {
      c10::weak_intrusive_ptr<c10::TensorImpl> saved{c10::intrusive_ptr<c10::TensorImpl>()};
      {
        const Tensor x = placed(leaf(numbers({5, 4})), mpu, 0) * 2;
        const Tensor y = of_a_function ? test::Cube::apply(x) : x.pow(3);
        saved = x.getIntrusivePtr();
        y.retain_grad();
        y.register_hook([](const Tensor& gradient) { return gradient * 2; });
        (y * 2).backward(numbers({5, 4}));
        EXPECT_TRUE(y.grad().defined());
      }
      EXPECT_TRUE(saved.expired()) << of_a_function;
    }
  });
}

TEST(Front, ALookOnOneRankChangesNothing) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor w = leaf(numbers({5, 4})), own = leaf(w);
    const auto run = [&](const Tensor& x, bool look) {
      const Tensor a = x * 2, b = x.sin();
      if (look) {
        EXPECT_NE(a.grad_fn(), nullptr);
      }
      for (const Tensor& each : {b, a}) {
        each.register_hook([](const Tensor& gradient) { return gradient / gradient.sum(); });
      }
      (a * b).sum(0).pow(2).sum().backward();
    };
    run(placed(own, mpu, 0), mpu.get_tensor_parallel_rank() == 0);
    run(w, false);
    expect_close(own.grad(), w.grad(), "gradient");
  });
}

}  // namespace
}  // namespace oslo
