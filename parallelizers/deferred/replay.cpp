#include "parallelizers/deferred/replay.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "parallelizers/deferred/content.h"
#include "parallelizers/placement/carrier/arguments.h"

namespace oslo {

at::Tensor view_of(const at::Tensor& bytes, const Geometry& at) {
  return at::empty({0}, at::TensorOptions(at.type))
      .set_(bytes.storage(), at.offset, at.sizes, at.strides);
}

std::vector<c10::IValue> run_call(const RecordedCall& call, const std::vector<at::Tensor>& operands,
                                  const at::Generator* generator) {
  const BelowDeferred below;
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  std::optional<at::Generator> own;
  if (generator != nullptr) {
    own = *generator;
  } else if (call.draws_from) {
    own = generator_at(*call.draws_from);
  }
  size_t next = 0;
  std::vector<c10::IValue> stack =
      with_tensors(call.arguments, [&](const at::Tensor&) { return operands[next++]; });
  const auto& arguments = call.op->schema->arguments();
  for (size_t i = 0; own && i < arguments.size(); ++i) {
    if (arguments[i].name() == "generator") stack[i] = *own;
  }
  call.op->handle.callBoxed(&stack);
  return stack;
}

at::Tensor Replay::value(const RecordedOperand& operand) {
  if (operand.given.defined()) return operand.given;
  return view_of(content(operand.recipe), operand.at);
}

std::vector<c10::IValue>& Replay::results_of(const RecordedCallPtr& call) {
  const auto found = results_.find(call);
  if (found != results_.end()) return found->second;
  call->check_operands();
  std::vector<at::Tensor> operands;
  for (const RecordedOperand& operand : call->operands) operands.push_back(value(operand));
  return results_[call] = run_call(*call, operands);
}

at::Tensor Replay::content(const Recipe& recipe) {
  const BelowDeferred below;
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  if (const auto found = contents_.find(recipe); found != contents_.end()) return found->second;
  const at::Tensor bytes = at::empty({recipe->bytes}, at::kByte);
  for (const RecordedStep* step : steps_of(recipe)) {
    const RecordedCall& call = *step->call;
    if (step->made()) {
      int number = 0;
      for_each_tensor(results_of(step->call), [&](const at::Tensor& result) {
        if (number++ == step->result) view_of(bytes, step->at).copy_(result);
      });
      continue;
    }
    call.check_operands();
    std::vector<at::Tensor> operands;
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const RecordedOperand& operand = call.operands[i];
      if (static_cast<int>(i) == step->operand) {
        operands.push_back(view_of(bytes, step->at));
      } else if (operand.recipe && operand.recipe == step->previous) {
        operands.push_back(view_of(bytes, operand.at));  // another view of what is written
      } else {
        // The call may write to it, too, which is a step of another storage.
        operands.push_back(call.op->schema->is_mutable() && operand.recipe ? value(operand).clone()
                                                                           : value(operand));
      }
    }
    run_call(call, operands);
  }
  return contents_[recipe] = bytes;
}

}  // namespace oslo
