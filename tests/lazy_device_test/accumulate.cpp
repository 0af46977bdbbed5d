// A node that adds a gradient to a parameter's own, in place, does so on the stream on which other
// gradients are added: the engine orders nothing there.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include "mpu/base/node_ptr.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "tests/lazy_device_test/late_tensors.h"

namespace oslo {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// Runs in a backward pass and adds to `accumulator`'s gradient, if it may.
struct AddsInPlace final : Node {
  explicit AddsInPlace(Node& accumulator) : accumulator(accumulator) {}
  variable_list apply(variable_list&&) override {
    told = add_to_gradient(accumulator, [this](const at::Tensor&) { ++added; });
    return {};
  }

  Node& accumulator;
  bool told = false;
  int added = 0;
};

bool adds_in_place(Node& accumulator) {
  const auto node = oslo::make_node<AddsInPlace>(accumulator);
  const at::Tensor start = at::empty({0});
  node->add_input_metadata(start);
  torch::autograd::Engine::get_default_engine().execute({Edge(node, 0)}, {start},
                                                        /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
  EXPECT_EQ(node->added, node->told ? 1 : 0);
  return node->told;
}

c10::Stream new_stream() {
  return c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getStreamFromGlobalPool(test::kLazy);
}

TEST(Accumulator, IsAddedToInPlaceOnItsOwnStreamOnly) {
  const MPU mpu(World::fake(0, 2), MpuOptions().tensor_parallel_size(2));
  const LayoutPtr halves =
      layout(from_local(at::ones({3}), mpu.tensor_mesh(), {Placement::shard(0)}, {6}));
  const c10::StreamGuard own(new_stream());
  const at::Tensor parameter = test::late(at::ones({3})).set_requires_grad(true);
  parameter.mutable_grad() = test::late(at::zeros({3}));
  const auto accumulator = make_accumulator(parameter, halves);
  EXPECT_TRUE(adds_in_place(*accumulator));
  {
    const c10::StreamGuard other(new_stream());
    EXPECT_FALSE(adds_in_place(*accumulator));
  }
  EXPECT_TRUE(adds_in_place(*accumulator));
}

}  // namespace
}  // namespace oslo
