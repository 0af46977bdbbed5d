// What docs/libtorch.md assumes of LibTorch where the library comes in, so that a LibTorch which
// changes it is noticed here and not in somebody's gradients.
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <map>
#include <string>
#include <vector>

#include "parallelizers/libtorch/autograd_engine.h"
#include "parallelizers/libtorch/key_fallback.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/libtorch/pickler_entry.h"
#include "parallelizers/libtorch/tag_end.h"
#include "parallelizers/libtorch/tensor_tag.h"
#include "parallelizers/libtorch/variable_hooks.h"
#include "parallelizers/libtorch/version_bit.h"
#include "parallelizers/memory/saved_tensors.h"

namespace oslo {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// --- dispatch keys
// --------------------------------------------------------------------------------

TEST(LibTorchKeys, NoOperatorHasAKernelAtOurs) {
  int operators = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op) continue;
    ++operators;
    for (const DispatchKey key : {kPlacedKey, kDeferredKey}) {
      EXPECT_FALSE(op->hasKernelForDispatchKey(key)) << name << " at " << key;
    }
  }
  EXPECT_GT(operators, 2000);
}

TEST(LibTorchKeys, TheDoorLiesAboveAutogradAndAutocast) {
  for (const DispatchKey below :
       {DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA, DispatchKey::AutogradOther,
        DispatchKey::AutogradMeta, DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA,
        DispatchKey::ADInplaceOrView, DispatchKey::BackendSelect, kDeferredKey}) {
    EXPECT_EQ(DispatchKeySet({kPlacedKey, below}).highestPriorityTypeId(), kPlacedKey) << below;
  }
}

TEST(LibTorchKeys, WhatIsWithoutContentLiesBelowAutogradAndAboveTheKernels) {
  for (const DispatchKey above : {DispatchKey::AutogradCPU, DispatchKey::ADInplaceOrView}) {
    EXPECT_EQ(DispatchKeySet({kDeferredKey, above}).highestPriorityTypeId(), above) << above;
  }
  for (const DispatchKey below :
       {DispatchKey::CPU, DispatchKey::Meta, DispatchKey::BackendSelect, DispatchKey::SparseCPU}) {
    EXPECT_EQ(DispatchKeySet({kDeferredKey, below}).highestPriorityTypeId(), kDeferredKey) << below;
  }
}

void never(const c10::OperatorHandle&, torch::jit::Stack*) {
  FAIL() << "a second kernel was registered at our key";
}

TEST(LibTorchKeys, AKeyTakesOneFallback) {
  for (const DispatchKey key : {kPlacedKey, kDeferredKey}) {
    EXPECT_THROW(KeyFallback(key, torch::CppFunction::makeFromBoxedFunction<&never>()), c10::Error)
        << key;
  }
}

// --- the slot for out-of-tree backends
// ------------------------------------------------------------

const TagPart* initialized(const at::Tensor& tensor) {
  return tag_part(*tensor.unsafeGetTensorImpl(), TagKind::initialized);
}

at::Tensor tagged() {
  const at::Tensor tensor = torch::ones({3, 5});
  set_tag_part(*tensor.unsafeGetTensorImpl(), TagKind::initialized, c10::make_intrusive<TagPart>());
  return tensor;
}

TEST(LibTorchSlot, GoesWithCopiesOfATensorsMetadataAndWithNothingElse) {
  const at::Tensor tensor = tagged();
  const TagPart* const part = initialized(tensor);
  ASSERT_NE(part, nullptr);
  const std::map<std::string, at::Tensor> share{{"detach", tensor.detach()},
                                                {"variable_data", tensor.variable_data()},
                                                {"tensor_data", tensor.tensor_data()}};
  for (const auto& [name, copy] : share) EXPECT_EQ(initialized(copy), part) << name;
  const std::map<std::string, at::Tensor> fresh{
      {"clone", tensor.clone()},      {"view", tensor.view({-1})}, {"alias", at::alias(tensor)},
      {"to", tensor.to(at::kDouble)}, {"add", tensor + 1},         {"select", tensor[0]}};
  for (const auto& [name, other] : fresh) EXPECT_EQ(initialized(other), nullptr) << name;
}

TEST(LibTorchSlot, BySetDataATensorGetsThatOfTheNewData) {
  const at::Tensor tensor = tagged();
  const at::Tensor other = tagged();
  ASSERT_NE(initialized(tensor), initialized(other));
  tensor.set_data(other);
  EXPECT_EQ(initialized(tensor), initialized(other));
  tensor.set_data(torch::zeros({2}));
  EXPECT_EQ(initialized(tensor), nullptr);
}

TEST(LibTorchSlot, SubjectsShareItAndDoNotDisturbEachOther) {
  const at::Tensor tensor = tagged();
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const at::Tensor copy = tensor.detach();
  EXPECT_EQ(others_with_tag_of(impl), 1);
  set_tag_part(impl, TagKind::computed, c10::make_intrusive<TagPart>());
  EXPECT_NE(tag_part(impl, TagKind::computed), nullptr);
  EXPECT_EQ(initialized(tensor), initialized(copy));
  EXPECT_EQ(tag_part(*copy.unsafeGetTensorImpl(), TagKind::computed), nullptr);
  EXPECT_EQ(others_with_tag_of(impl), 0);
  set_tag_part(impl, TagKind::initialized, nullptr);
  set_tag_part(impl, TagKind::computed, nullptr);
  EXPECT_EQ(impl.get_backend_meta(), nullptr);
}

TEST(LibTorchSlot, AnotherBackendsEntryIsNeitherReadNorReplaced) {
  const at::Tensor tensor = torch::ones({2});
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  impl.set_backend_meta(c10::make_intrusive<c10::BackendMeta>());
  EXPECT_EQ(initialized(tensor), nullptr);
  EXPECT_THROW(set_tag_part(impl, TagKind::initialized, c10::make_intrusive<TagPart>()), Error);
}

// --- the end of a tensor
// --------------------------------------------------------------------------

struct Noticed final : TagPart {
  explicit Noticed(bool* gone) : gone(gone) {}
  ~Noticed() override { *gone = true; }
  bool* gone;
};

/// Whether what is remembered of a parameter goes with it although a weak reference stays.
bool goes_with_the_parameter(bool end_with_it) {
  bool gone = false;
  at::Tensor parameter = torch::ones({2}).requires_grad_();
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(parameter.getIntrusivePtr());
  set_tag_part(*parameter.unsafeGetTensorImpl(), TagKind::initialized,
               c10::make_intrusive<Noticed>(&gone));
  if (end_with_it) end_tag_with(parameter);
  parameter.reset();
  EXPECT_TRUE(weak.expired());
  return gone;
}

TEST(LibTorchSlot, AParameterThatDiesLetsGoOfItWhereItIsAskedTo) {
  EXPECT_TRUE(goes_with_the_parameter(true));
  // The reason for asking. Where this fails LibTorch does it by itself, and tag_end.h can go.
  EXPECT_FALSE(goes_with_the_parameter(false));
}

// --- the table of what is asked of a tensor's place in the graph
// ----------------------------------

TEST(LibTorchVariableHooks, OursStandBeforeLibTorchs) {
  EXPECT_NE(dynamic_cast<VariableHooks*>(at::impl::GetVariableHooks()), nullptr);
  at::impl::VariableHooksInterface* const before = at::impl::GetVariableHooks();
  {
    const VariableHooks another;
    EXPECT_EQ(at::impl::GetVariableHooks(), &another);
    at::Tensor x = torch::ones({2}).requires_grad_();
    const at::Tensor y = x.exp();
    int calls = 0;
    x.register_hook([&](const at::Tensor&) { ++calls; });
    EXPECT_TRUE(x.is_leaf());
    EXPECT_EQ(y.grad_fn()->name(), "ExpBackward0");
    y.sum().backward();
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(torch::equal(x.grad(), y.detach()));
  }
  EXPECT_EQ(at::impl::GetVariableHooks(), before);
}

// --- the autograd engine
// --------------------------------------------------------------------------

TEST(LibTorchEngine, IsOursAndIsAskedForEveryTensorThatAnOperatorSaves) {
  EXPECT_TRUE(engine_is_installed());
  const at::Tensor x = torch::rand({3}).requires_grad_();
  int saved = 0;
  at::Tensor loss;
  {
    const SavedTensorScope scope([&](const at::Tensor&) {
      ++saved;
      return UnpackSavedTensor();
    });
    loss = (x.exp() * x.sin()).sum();  // exp keeps its result, sin its operand, mul both of its
  }
  EXPECT_EQ(saved, 4);
  loss.backward();
  EXPECT_TRUE(torch::allclose(x.grad(), (x.exp() * (x.sin() + x.cos())).detach()));
}

// --- pickling
// -------------------------------------------------------------------------------------

int asked = 0;

TEST(LibTorchPickler, AnEntryThatStandsStays) {
  asked = 0;
  const PicklerEntry second([](const at::Tensor&) { ++asked; });
  torch::pickle_save(torch::ones({2}));
  EXPECT_EQ(asked, 0);
}

// --- counts of writes
// -----------------------------------------------------------------------------

TEST(LibTorchVersions, WhoIsLeftBehindIsTakenForNothingItWas) {
  const at::Tensor x = torch::rand({4}).requires_grad_();
  const at::Tensor y = x * 2;
  const at::Tensor loss = (y * y).sum();  // keeps y
  const at::Tensor view = y.view({2, 2});
  EXPECT_FALSE(is_left_behind(*y.unsafeGetTensorImpl()));
  const auto writes = view.unsafeGetTensorImpl()->version_counter().current_version();
  leave_behind(*view.unsafeGetTensorImpl());
  EXPECT_TRUE(is_left_behind(*y.unsafeGetTensorImpl()));
  EXPECT_FALSE(is_left_behind(*view.unsafeGetTensorImpl()));
  EXPECT_EQ(view.unsafeGetTensorImpl()->version_counter().current_version(), writes + 1);
  {
    const torch::NoGradGuard no_grad;
    y.detach().add_(1);  // counted, and left behind still
  }
  EXPECT_TRUE(is_left_behind(*y.unsafeGetTensorImpl()));
  EXPECT_THROW(loss.backward(), c10::Error);
}

}  // namespace
}  // namespace oslo
