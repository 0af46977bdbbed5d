// Operators that write into placed tensors, their views, and plain tensors beside them; and random
// numbers on cut values.
#include <gmock/gmock.h>

#include "tests/support/cube.h"
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::HasSubstr;

using Change = std::function<void(Tensor)>;

/// The same change of a placed tensor, cut on each dimension in turn, and of a whole one.
void expect_same_change(const MPU& mpu, const char* name, const Change& change) {
  for (const int64_t dim : {0, 1}) {
    const Tensor whole = numbers({7, 5}).clone(), x = placed(numbers({7, 5}), mpu, dim);
    const LayoutPtr before = layout(x);
    change(whole);
    change(x);
    expect_close(x, whole, std::string(name) + ", cut on " + std::to_string(dim));
    EXPECT_EQ(layout(x), before) << name;
  }
}

TEST(InPlace, WritesThisRanksPartAndKeepsTheCut) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor other = numbers({7, 5}, 2.0), row = numbers({5}, 1.0), mask = other > 0;
    const std::vector<std::pair<const char*, Change>> changes = {
        {"zero_", [](Tensor t) { t.zero_(); }},
        {"mul_", [](Tensor t) { t.mul_(2); }},
        {"add_ whole", [&](Tensor t) { t.add_(other, 0.5); }},
        {"add_ row", [&](Tensor t) { t.add_(row); }},
        {"add_ column", [&](Tensor t) { t.add_(other.slice(1, 2, 3)); }},
        {"add_ placed", [&](Tensor t) { t.add_(placed(other, mpu, 0)); }},
        {"add_ placed otherwise", [&](Tensor t) { t.add_(placed(other, mpu, 1)); }},
        {"masked_fill_", [&](Tensor t) { t.masked_fill_(mask, -3.0); }},
        {"masked_fill_ placed", [&](Tensor t) { t.masked_fill_(placed(mask, mpu, 0), -3.0); }},
        {"clamp_", [](Tensor t) { t.clamp_(-0.5, 0.5); }},
        {"copy_", [&](Tensor t) { t.copy_(other); }},
        {"copy_ row", [&](Tensor t) { t.copy_(row); }},
        {"lerp_", [&](Tensor t) { t.lerp_(other, 0.25); }},
        {"addcmul_", [&](Tensor t) { t.addcmul_(other, row); }},
        {"fill_", [](Tensor t) { t.fill_(4); }},
        {"index_put_",
         [&](Tensor t) {
           t.index_put_({torch::tensor({1, 6, 4})}, row);
         }},
        {"index_add_",
         [&](Tensor t) {
           t.index_add_(0, torch::tensor({6}), row.view({1, 5}));
         }},
        {"slice add_", [](Tensor t) { t.slice(0, 0, 7).add_(1); }},
        {"relu_", [](Tensor t) { t.relu_(); }},
    };
    for (const auto& [name, change] : changes) expect_same_change(mpu, name, change);
  });
}

TEST(InPlace, WritesThroughViews) {
  on_ranks(2, [](const MPU& mpu) {
    const auto expect = [&](const char* name, int64_t dim, const Change& change) {
      const Tensor whole = numbers({4, 6, 5}).clone(), x = placed(numbers({4, 6, 5}), mpu, dim);
      change(whole);
      change(x);
      expect_close(x, whole, name);
    };
    expect("slice", 1, [](Tensor t) { t.slice(0, 1, 3).add_(1); });
    expect("select", 1, [](Tensor t) { t.select(0, 2).mul_(3); });
    expect("transpose", 0, [](Tensor t) { t.transpose(0, 2).select(0, 1).zero_(); });
    expect("view", 0, [](Tensor t) { t.view({4, 30}).slice(1, 3, 9).add_(2); });
    expect("chunk", 0, [](Tensor t) { t.chunk(2, 1)[1].neg_(); });
    expect("unsqueeze", 1, [](Tensor t) { t.unsqueeze(0).squeeze(0).add_(1); });
    expect("cache", 1, [](Tensor t) { t.slice(0, 2, 3).copy_(numbers({1, 6, 5}, 2.0)); });
    expect("copy_ of a slice", 1, [](Tensor t) { t.slice(2, 0, 2).copy_(t.slice(2, 2, 4)); });
    const Tensor cache = placed(numbers({4, 6, 5}), mpu, 1);
    expect_close(torch::slice_scatter(cache, numbers({4, 6, 1}), 2, 1, 2),
                 torch::slice_scatter(numbers({4, 6, 5}), numbers({4, 6, 1}), 2, 1, 2),
                 "slice_scatter");
  });
}

TEST(InPlace, GradientsThroughWritesAndViews) {
  on_ranks(2, [](const MPU& mpu) {
    const auto expect = [&](const char* name, const std::function<Tensor(Tensor, Tensor)>& run) {
      const Tensor w = leaf(numbers({4, 6})), v = leaf(numbers({4, 6}, 2.0));
      const Tensor own = leaf(w), other = leaf(v);
      const Tensor expected = run(w * 1, v);
      const Tensor actual = run(placed(own, mpu, 1) * 1, placed(other, mpu, 1));
      expect_close(actual, expected, name);
      actual.pow(3).sum().backward();
      expected.pow(3).sum().backward();
      expect_close(own.grad(), w.grad(), std::string(name) + ", gradient");
      expect_close(other.grad(), v.grad(), std::string(name) + ", gradient of the other");
    };
    expect("add_", [](Tensor x, Tensor y) { return x.add_(y * 2); });
    expect("mul_", [](Tensor x, Tensor y) { return x.mul_(y); });
    expect("slice copy_", [](Tensor x, Tensor y) {
      x.slice(0, 1, 3).copy_(y.slice(0, 0, 2));
      return x;
    });
    expect("select mul_", [](Tensor x, Tensor y) {
      x.select(0, 2).mul_(y.select(0, 1));
      return x * y;
    });
    expect("masked_fill_", [](Tensor x, Tensor y) { return x.masked_fill_(y > 0, 0.0) + y; });
    expect("the view after the write", [](Tensor x, Tensor y) {
      const Tensor view = x.slice(0, 0, 2);
      x.mul_(y);
      return view * 2;
    });
    expect("relu_", [](Tensor x, Tensor y) { return (x + y).relu_(); });
  });
}

TEST(InPlace, RefusesToCutItsTargetAnew) {
  on_ranks(2, [](const MPU& mpu) {
    // One device refuses a result larger than the target too.
    Tensor small = placed(numbers({1, 6}), mpu, 1);
    EXPECT_NE(error_of([&] { small.add_(placed(numbers({4, 6}), mpu, 0)); }), "");
  });
}

/// Runs `write` on a cut tensor and on an ordinary one; what it returns, the tensor afterwards and
/// its gradient must be the same.
void expect_written_alike(const MPU& mpu, const char* what,
                          const std::function<Tensor(Tensor x, Tensor y)>& write) {
  const Tensor w = leaf(numbers({4, 6})), own = leaf(w);
  const Tensor v = leaf(numbers({6}, 2.0)), other = leaf(v);
  Tensor x = placed(own, mpu, 0) * 1, reference = w * 1;
  const Tensor actual = write(x, other), expected = write(reference, v);
  expect_close(actual, expected, what);
  expect_close(x, reference, c10::str(what, ", what it is a view of"));
  (actual.pow(2).sum() + x.pow(3).sum()).backward();
  (expected.pow(2).sum() + reference.pow(3).sum()).backward();
  expect_close(own.grad(), w.grad(), c10::str(what, ", gradient"));
  expect_close(other.grad(), v.grad(), c10::str(what, ", gradient of what was written"));
}

TEST(InPlace, AWriteToAViewThatHadToGatherIsWrittenBack) {
  on_ranks(3, [](const MPU& mpu) {
    expect_written_alike(mpu, "select", [](Tensor x, Tensor y) { return x.select(0, 1).mul_(y); });
    expect_written_alike(mpu, "slice", [](Tensor x, Tensor y) {
      return x.slice(0, 1, 3).copy_(y.expand({2, 6}));
    });
    expect_written_alike(mpu, "a view of it", [](Tensor x, Tensor y) {
      const Tensor row = x.select(0, 2);
      row.slice(0, 1, 4).add_(y.slice(0, 2, 5));
      return row * 2;
    });
    expect_written_alike(mpu, "reshape", [](Tensor x, Tensor y) {
      x.view({3, 8}).select(1, 3).mul_(y.slice(0, 0, 3));
      return x + y;
    });
    expect_written_alike(mpu, "flat", [](Tensor x, Tensor y) {
      x.view({-1}).slice(0, 5, 11).add_(y);
      return x.view({-1}).slice(0, 3, 9) * y;
    });
    expect_written_alike(mpu, "a stride", [](Tensor x, Tensor y) {
      const Tensor odd = x.slice(0, 1, 4, 2);
      odd.masked_fill_(odd > 0, 0.5);
      return odd * y;
    });
    expect_written_alike(mpu, "by index", [](Tensor x, Tensor y) {
      const Tensor row = x.select(0, 0);
      row.index_add_(0, torch::tensor({1, 4}), y.slice(0, 0, 2));
      return row.cumsum(0);
    });
    expect_written_alike(mpu, "a write to two views in turn", [](Tensor x, Tensor y) {
      const Tensor row = x.select(0, 1), rows = x.slice(0, 1, 3);
      row.mul_(y);
      rows.add_(row.clone());
      row.add_(rows.select(0, 1));
      return rows * 2 + row;
    });
    expect_written_alike(mpu, "a write to the whole", [](Tensor x, Tensor y) {
      const Tensor row = x.select(0, 1), part = row.slice(0, 0, 2), still_cut = x.slice(1, 0, 2);
      x.mul_(y);
      return torch::cat({row, part, still_cut.sum(0)});
    });
  });
}

TEST(InPlace, AWriteToAViewThatHadToGatherInInferenceMode) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor p = marked(numbers({4, 6}), mpu), own = numbers({4, 6}).clone();
    const c10::InferenceMode inference;
    Tensor x = placed(numbers({4, 6}), mpu, 0) * 1, reference = numbers({4, 6}) * 1;
    const auto change = [](Tensor all) {
      const Tensor row = all.select(0, 1), rows = all.slice(0, 0, 2), turned = all.t();
      const Tensor column = turned.select(1, 3);
      row.mul_(3);
      all.add_(1);
      return torch::cat({rows.flatten(), column});
    };
    expect_close(change(p), change(own), "views of a parameter");
    const auto write = [](Tensor all) {
      Tensor row = all.select(0, 1), rows = all.slice(0, 0, 3, 2);
      all.mul_(2);
      row.add_(rows.select(0, 1));
      rows.select(0, 0).zero_();
      return torch::cat({rows, all, row.unsqueeze(0)});
    };
    expect_close(write(x), write(reference), "the views");
    expect_close(x, reference, "what they are views of");
  });
}

TEST(InPlace, AWriteToAViewOfAParameterIsWrittenBack) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor p = marked(numbers({4, 6}), mpu), first = p.select(0, 1);
    EXPECT_THAT(error_of([&] { p.select(0, 1).zero_(); }), HasSubstr("NoGradGuard"));
    torch::NoGradGuard no_grad;
    p.add_(1);
    expect_close(first, numbers({4, 6})[1] + 1, "taken again");
    p.select(0, 2).zero_();
    Tensor expected = numbers({4, 6}) + 1;
    expected[2].zero_();
    expect_close(p, expected, "written back");
  });
}

TEST(InPlace, PartsOfOneElementAliasWhatOneDevicesDo) {
  // One row a rank: such a part is contiguous either way, the whole is not.
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [](const MPU& mpu) {
      for (const int64_t rows : {2, 3}) {
        const auto expect = [&](const char* what, const std::function<Tensor(Tensor)>& run) {
          const Tensor whole = numbers({rows, 6}).clone(), x = placed(numbers({rows, 6}), mpu, 0);
          const Tensor expected = run(whole);
          expect_close(run(x), expected, what);
          expect_close(x, whole, c10::str(what, ", what it was made of"));
        };
        expect("a view of a copy", [](Tensor x) {
          const Tensor copy = x.t().contiguous();
          copy.view({-1}).zero_();
          return copy;
        });
        expect("a view taken before the write", [](Tensor x) {
          const Tensor copy = x.t().contiguous(), view = copy.view({-1, 2});
          copy.mul_(2);
          return view + 0;
        });
        expect("a result in another order", [](Tensor x) {
          const Tensor y = x.t().exp();
          y.contiguous().zero_();
          const Tensor z = y.reshape({-1, 2});
          y.mul_(2);
          return z + y.reshape({-1, 2});
        });
        expect("a slice, flat", [](Tensor x) {
          const Tensor part = x.slice(1, 1, 4);
          part.reshape({-1}).add_(1);
          return part.t().reshape({-1});
        });
        const Tensor all = numbers({rows, 6}) * 1;
        expect_close((placed(all, mpu, 0) * 1).unsafe_chunk(2, 0)[0].mul_(2),
                     all.unsafe_chunk(2, 0)[0].clone().mul_(2), "a piece that may be written");
      }
    });
  }
}

TEST(InPlace, ViewsThatHadToGatherRefuseWhatWouldBeLost) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor x = placed(leaf(numbers({4, 6})), mpu, 0) * 1;
    const Tensor kept = x.select(0, 1);
    kept.retain_grad();
    EXPECT_THAT(error_of([&] { kept.mul_(3); }), HasSubstr("keeps its gradient"));
    Tensor reshaped = x.select(0, 1);
    reshaped.unsqueeze_(1);
    expect_close(reshaped, numbers({4, 6}).select(0, 1).unsqueeze(1), "reshaped in place");
    const Tensor row = x.unbind(0)[2], brought = x.select(0, 2);
    Tensor turned = x;
    turned.t_();
    EXPECT_THAT(error_of([&] { row.sum(); }), HasSubstr("another shape in place"));
    expect_close(brought, numbers({4, 6}).select(0, 2), "of a range that is as it was");
    turned.t_();
    expect_close(row, numbers({4, 6}).select(0, 2), "of the shape that it was taken of");
    const Tensor p = marked(numbers({4, 6}), mpu), y = leaf(numbers({6}));
    EXPECT_THAT(error_of([&] { p.narrow(0, 1, 1).mul_(y); }), HasSubstr("NoGradGuard"));
    EXPECT_THAT(error_of([&] { p.slice(1, 0, 2).zero_(); }), HasSubstr("NoGradGuard"));
    const Tensor frozen = marked(numbers({4, 6}), mpu).set_requires_grad(false);
    EXPECT_THAT(error_of([&] { frozen.select(0, 1).mul_(y); }), HasSubstr("NoGradGuard"));
    EXPECT_THAT(error_of([&] { frozen.slice(1, 0, 2).mul_(y.slice(0, 0, 2)); }),
                HasSubstr("NoGradGuard"));
  });
}

TEST(InPlace, AViewSavedForBackwardAndChangedIsAnError) {
  on_ranks(2, [](const MPU& mpu) {
    for (const int64_t dim : {0, 1}) {  // gathered, and this rank's part
      const Tensor x = placed(leaf(numbers({4, 6})), mpu, dim) * 1;
      const Tensor loss = test::Cube::apply(x.select(0, 1)).sum();
      x.mul_(2);
      EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"))
          << dim;
    }
  });
}

TEST(InPlace, APlainTensorChangedByAPlacedOneGathers) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor other = numbers({7, 5}, 2.0);
    Tensor plain = numbers({7, 5}).clone();
    plain.add_(placed(other, mpu, 0));
    expect_close(plain, numbers({7, 5}) + other, "add_");
    plain.slice(0, 1, 3).copy_(placed(other, mpu, 0).slice(0, 1, 3));
    Tensor expected = numbers({7, 5}) + other;
    expected.slice(0, 1, 3).copy_(other.slice(0, 1, 3));
    expect_close(plain, expected, "copy_ of a slice");
    plain.masked_fill_(placed(other > 0, mpu, 1), 0.0);
    expect_close(plain, expected.masked_fill(other > 0, 0.0), "masked_fill_");
    EXPECT_FALSE(is_placed(plain));
    const Tensor w = leaf(numbers({7, 5})), own = leaf(w);
    Tensor sum = torch::zeros({7, 5}, torch::kDouble), reference = sum.clone();
    sum.add_(placed(own, mpu, 1) * 2);
    reference.add_(w * 2);
    sum.pow(2).sum().backward();
    reference.pow(2).sum().backward();
    expect_close(own.grad(), w.grad(), "gradient through a plain accumulator");
  });
}

TEST(InPlace, ASavedValueChangedLaterIsAnError) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor x = placed(leaf(numbers({4, 6})), mpu, 0) * 1;
    const Tensor loss = x.pow(3).sum();
    x.mul_(2);
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"));
  });
}

TEST(Random, DropoutOnCutValuesIsOneDevicesMask) {
  on_ranks(3, [](const MPU& mpu) {
    for (const int64_t dim : {0, 1, 2}) {
      const Tensor w = leaf(numbers({4, 5, 7})), own = leaf(w), x = placed(own, mpu, dim);
      const auto drop = [](const Tensor& t) { return torch::dropout(t, 0.4, true); };
      const Tensor expected = seeded([&] { return drop(w); });
      const Tensor actual = seeded([&] { return drop(x); });
      expect_close(actual, expected, "dropout");
      EXPECT_TRUE(is_placed(actual));
      actual.sum().backward();
      expected.sum().backward();
      expect_close(own.grad(), w.grad(), "the mask of backward");
      const Tensor turned = seeded([&] { return drop(x.transpose(1, 2)); });
      expect_close(turned, seeded([&] { return drop(w.transpose(1, 2)); }),
                   "of a transposed value");
      const Tensor in_place = x.detach().clone(), reference = w.detach().clone();
      seeded([&] { return torch::dropout_(const_cast<Tensor&>(in_place), 0.4, true); });
      seeded([&] { return torch::dropout_(const_cast<Tensor&>(reference), 0.4, true); });
      expect_close(in_place, reference, "dropout_");
      expect_close(torch::dropout(x, 0.4, false), w, "in evaluation");
    }
  });
}

TEST(Random, DrawsLikeOneDevice) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor w = numbers({4, 7}), x = placed(w, mpu, 1);
    const auto same = [&](const char* name, const std::function<Tensor(Tensor)>& draw) {
      expect_close(seeded([&] { return draw(x.clone()); }), seeded([&] { return draw(w.clone()); }),
                   name);
    };
    same("rand_like", [](Tensor t) { return torch::rand_like(t); });
    same("randn_like", [](Tensor t) { return torch::randn_like(t); });
    same("uniform_", [](Tensor t) { return t.uniform_(-1, 1); });
    same("normal_", [](Tensor t) { return t.normal_(1, 2); });
    same("bernoulli_", [](Tensor t) { return t.bernoulli_(0.3); });
    same("exponential_", [](Tensor t) { return t.exponential_(); });
  });
}

TEST(Random, PerRankDrawsDifferForEachRank) {
  on_ranks(
      2,
      [](const MPU& mpu) {
        const Tensor x = placed(torch::ones({64, 8}, torch::kDouble), mpu, 0);
        const Tensor y = torch::dropout(x, 0.5, true);
        const Tensor whole = full_tensor(y);
        const auto halves = whole.chunk(2, 0);
        EXPECT_FALSE(torch::equal(halves[0], halves[1]));
        EXPECT_TRUE(((whole == 0) | (whole == 2)).all().item<bool>());
        const Tensor noise = full_tensor(torch::rand_like(x));
        EXPECT_FALSE(torch::equal(noise.chunk(2, 0)[0], noise.chunk(2, 0)[1]));
      },
      RandomMode::per_rank);
}

/// Ranks draw for parts of different sizes: from the default generator, which whole values need
/// alike on all ranks, none of them may draw.
TEST(Random, PerRankLeavesTheDefaultGeneratorAlone) {
  const auto drawn = [](int rank) {
    const MPU mpu(World::fake(rank, 2),
                  MpuOptions().tensor_parallel_size(2).seed(3).random_mode(RandomMode::per_rank));
    const Tensor x = from_local(torch::ones({3, 8}, torch::kDouble), mpu.tensor_mesh(),
                                {Placement::shard(0)}, {6, 8});
    const Tensor before = at::detail::getDefaultCPUGenerator().get_state();
    std::vector<Tensor> results{torch::rand_like(x),          torch::randn_like(x),
                                torch::randint_like(x, 1000), torch::randint_like(x, 5, 1000),
                                torch::dropout(x, 0.5, true), x.clone().uniform_()};
    for (Tensor& each : results) each = local_tensor(each);
    EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
    EXPECT_GE(results[3].min().item<double>(), 5);
    return results;
  };
  const auto first = drawn(0), second = drawn(1);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_FALSE(torch::equal(first[i], second[i])) << i;
}

}  // namespace
}  // namespace oslo
