#include "parallelizers/deferred/recipe.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "mpu/base/digest.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

uint64_t digest_of_geometry(uint64_t digest, const Geometry& at) {
  for (const int64_t size : at.sizes) digest = mix(digest, static_cast<uint64_t>(size));
  for (const int64_t stride : at.strides) digest = mix(digest, static_cast<uint64_t>(stride));
  digest = mix(digest, static_cast<uint64_t>(at.offset));
  return mix(digest, static_cast<uint64_t>(at.type));
}

/// Whether every byte of the storage is written, and nothing of it read.
bool covers_all(const RecordedCall& call, int operand, const Geometry& at, const Recipe& previous,
                int64_t bytes) {
  if (operand < 0) return true;
  if (!overwrites(*call.op)) return false;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (static_cast<int>(i) != operand && call.operands[i].recipe == previous) return false;
  }
  // Of as many elements as there is room for, each has its own place unless one has stride zero.
  const bool apart = std::none_of(at.strides.begin(), at.strides.end(),
                                  [](int64_t stride) { return stride == 0; });
  return apart && at.numel() * static_cast<int64_t>(c10::elementSize(at.type)) == bytes;
}

}  // namespace

Geometry::Geometry(const at::Tensor& tensor)
    : sizes(tensor.sizes()),
      strides(tensor.strides()),
      offset(tensor.storage_offset()),
      type(tensor.scalar_type()) {}

int64_t Geometry::numel() const {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

bool Geometry::contiguous() const {
  return numel() == 0 || run_length() == numel();
}

int64_t Geometry::run_length() const {
  int64_t run = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != run) break;
    run *= std::max<int64_t>(sizes[d], 1);
  }
  return run;
}

void RecordedCall::check_operands() const {
  for (const RecordedOperand& each : operands) {
    if (!each.given.defined() || each.given.is_inference()) continue;
    OSLO_CHECK(each.given._version() == each.version, op->name, " was called under ",
               "oslo::DeferredInit with an ordinary tensor of shape ", each.given.sizes(),
               " that has been written to since, and what it held then is gone; leave the tensor "
               "alone until the model is filled, or hand over a clone()");
  }
}

RecordedStep::RecordedStep(RecordedCallPtr of, int operand, int result, Geometry at, Recipe before,
                           int64_t bytes)
    : call(std::move(of)),
      operand(operand),
      result(result),
      at(std::move(at)),
      previous(std::move(before)),
      bytes(bytes),
      covers(covers_all(*call, operand, this->at, previous, bytes)) {
  if (covers && operand >= 0) previous = nullptr;
  digest = digest_now();
}

uint64_t RecordedStep::digest_now() const {
  uint64_t of = mix(call->digest, static_cast<uint64_t>(operand));
  of = mix(of, static_cast<uint64_t>(result));
  of = digest_of_geometry(of, at);
  return covers || !previous ? of : mix(of, previous->digest);
}

/// One by one: a long history would overflow the stack.
RecordedStep::~RecordedStep() {
  Recipe next = std::move(previous);
  while (next && next.use_count() == 1) next = Recipe(std::move(next->previous));
}

std::vector<const RecordedStep*> steps_of(const Recipe& recipe) {
  std::vector<const RecordedStep*> steps;
  for (const RecordedStep* step = recipe.get(); step != nullptr; step = step->previous.get()) {
    steps.push_back(step);
    if (step->covers) break;
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

bool overwrites(const OperatorEntry& op) {
  static constexpr std::array kNames{
      "aten::fill_.Scalar", "aten::fill_.Tensor",     "aten::zero_",
      "aten::copy_",        "aten::uniform_",         "aten::normal_",
      "aten::random_",      "aten::random_.to",       "aten::random_.from",
      "aten::cauchy_",      "aten::bernoulli_.float", "aten::log_normal_",
      "aten::exponential_", "aten::geometric_"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](const char* name) { return op.name == name; });
}

}  // namespace oslo
