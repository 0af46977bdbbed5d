#include "parallelizers/deferred/record.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>

#include "mpu/base/digest.h"
#include "mpu/base/error.h"
#include "mpu/group/rank_check.h"
#include "parallelizers/deferred/mt19937_jump.h"
#include "parallelizers/deferred/replay.h"
#include "parallelizers/placement/carrier/arguments.h"

namespace oslo {
namespace {

constexpr int64_t kMostBytesNow = int64_t{64} << 20;

/// Of all contents that the computation of one goes through.
int64_t bytes_behind(const Recipe& recipe, std::set<Recipe>& seen) {
  if (!recipe || !seen.insert(recipe).second) return 0;
  int64_t bytes = recipe->bytes;
  for (const RecordedStep* step : steps_of(recipe)) {
    for (const RecordedOperand& operand : step->call->operands)
      bytes += bytes_behind(operand.recipe, seen);
  }
  return bytes;
}

at::Tensor shape_of(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           at::TensorOptions(tensor.dtype()).device(at::kMeta));
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// The positions, among a call's tensors, of those that it writes to.
std::vector<int> written_operands(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<int> written;
  int number = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor_in(arguments[i], [&](const at::Tensor&) {
      if (writes(op.schema->arguments()[i])) written.push_back(number);
      ++number;
    });
  }
  return written;
}

uint64_t digest_of_argument(const c10::IValue& value) {
  if (value.isDouble()) {
    uint64_t bits = 0;
    const double number = value.toDouble();
    std::memcpy(&bits, &number, sizeof(bits));
    return bits;
  }
  std::ostringstream text;
  text << value.tagKind();
  if (value.isInt() || value.isBool() || value.isIntList() || value.isString() ||
      value.isDoubleList() || value.isBoolList()) {
    text.precision(17);
    text << value;
  }
  return digest_of(text.str());
}

std::vector<RecordedOperand> operands_of(c10::ArrayRef<c10::IValue> arguments,
                                         const std::vector<int>& written) {
  std::vector<RecordedOperand> operands;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    RecordedOperand operand{Geometry(tensor), nullptr};
    const auto number = static_cast<int>(operands.size());
    const bool target = std::find(written.begin(), written.end(), number) != written.end();
    if (const Content* content = content_of(tensor)) {
      if (!target || written.size() > 1) operand.recipe = content->recipe;
    } else {
      operand.given = tensor;
      operand.version = tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version());
    }
    operands.push_back(std::move(operand));
  });
  return operands;
}

/// The one among the arguments, else the default one.
at::Generator generator_of(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator()) return argument.toGenerator();
  }
  return at::detail::getDefaultCPUGenerator();
}

/// The results' shapes, or the results where the operator knows none without computing.
std::vector<c10::IValue> results_of(const RecordedCall& call, torch::jit::Stack& stack) {
  std::vector<c10::IValue> shapes = call.arguments;
  for (size_t i = 0; i < shapes.size(); ++i) {
    // Of no tensor and no device come tensors on the CPU.
    const bool unsaid = call.operands.empty() && call.op->schema->arguments()[i].name() == "device";
    if (unsaid || shapes[i].isDevice()) shapes[i] = c10::Device(at::kMeta);
  }
  try {
    call.op->handle.callBoxed(&shapes);
    return shapes;
  } catch (const c10::NotImplementedError&) {
    torch::jit::Stack now(stack.end() - static_cast<int64_t>(call.op->arguments), stack.end());
    for (size_t i = 0; call.op->random && i < now.size(); ++i) {  // drawn from by the call itself
      if (call.op->schema->arguments()[i].name() != "generator") continue;
      now[i] = generator_of(now).clone();
    }
    run_now(*call.op, now);
    return now;
  }
}

/// Takes the state that the call draws from, and leaves the generator behind what it draws.
void draw(RecordedCall& call, c10::ArrayRef<c10::IValue> arguments) {
  const at::Generator generator = generator_of(arguments);
  auto& cpu = *at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::lock_guard<std::mutex> lock(cpu.mutex_);
  call.draws_from = state_of(cpu);
  at::Tensor target;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (!target.defined()) target = tensor;
  });
  const bool alone = call.operands.size() == 1 && call.op->in_place;
  if (const auto drawn = alone ? numbers_drawn(call.op->name, target) : std::nullopt) {
    at::mt19937 engine = call.draws_from->engine;
    advance(engine, *drawn);
    cpu.set_engine(engine);
    return;
  }
  const at::Generator own = generator_at(*call.draws_from);
  std::vector<at::Tensor> operands;
  Replay replay;
  for (const RecordedOperand& operand : call.operands) {
    const bool scratch = alone && overwrites(*call.op);
    if (scratch || (!operand.recipe && !operand.given.defined())) {
      // Which numbers are drawn depends on how the elements lie, not on what they are.
      operands.push_back(at::empty_strided(operand.at.sizes, operand.at.strides,
                                           at::TensorOptions(operand.at.type)));
    } else {
      operands.push_back(replay.value(operand).clone());
    }
  }
  run_call(call, operands, &own);
  set_state(cpu, state_of(*at::check_generator<at::CPUGeneratorImpl>(own)));
}

}  // namespace

uint64_t digest_of_call(const RecordedCall& call) {
  uint64_t digest = digest_of(call.op->name);
  for (const c10::IValue& argument : call.arguments) {
    digest = mix(digest, digest_of_argument(argument));
  }
  for (const RecordedOperand& operand : call.operands) {
    for (const int64_t size : operand.at.sizes) digest = mix(digest, static_cast<uint64_t>(size));
    for (const int64_t stride : operand.at.strides) {
      digest = mix(digest, static_cast<uint64_t>(stride));
    }
    digest = mix(digest, static_cast<uint64_t>(operand.at.offset));
    digest = mix(digest, static_cast<uint64_t>(operand.at.type));
    if (operand.recipe) digest = mix(digest, operand.recipe->digest);
    if (operand.given.defined()) digest = mix(digest, content_digest(operand.given));
  }
  if (call.draws_from) {
    const at::mt19937_data_pod state = call.draws_from->engine.data();
    for (const uint32_t word : state.state_) digest = mix(digest, word);
    digest = mix(digest, state.next_);
  }
  return digest;
}

void record(const OperatorEntry& op, torch::jit::Stack& stack,
            const std::shared_ptr<DeferredModel>& model) {
  const BelowDeferred below;
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  const size_t base = stack.size() - op.arguments;
  const std::vector<c10::IValue> arguments(stack.begin() + static_cast<int64_t>(base), stack.end());
  const std::vector<int> written = written_operands(op, arguments);
  OSLO_CHECK(written.empty() || op.schema->returns().size() <= written.size(), op.name,
             " under oslo::DeferredInit writes to tensors and gives others, too, which is not "
             "recorded; call it after the model is filled");
  auto call = std::make_shared<RecordedCall>();
  call->op = &op;
  call->operands = operands_of(arguments, written);
  call->arguments = with_tensors(arguments, shape_of);
  for (c10::IValue& argument : call->arguments) {
    if (argument.isGenerator()) argument = c10::IValue();
  }
  const std::vector<c10::IValue> results = results_of(*call, stack);
  if (op.random) draw(*call, arguments);
  call->digest = digest_of_call(*call);
  stack.resize(base);
  if (written.empty()) {
    int number = 0;
    for (const c10::IValue& result : results) {
      stack.push_back(with_tensors_in(result, [&](const at::Tensor& shape) {
        const auto bytes = static_cast<int64_t>(shape.storage().nbytes());
        return deferred_tensor(
            shape,
            std::make_shared<RecordedStep>(call, -1, number++, Geometry(shape), nullptr, bytes),
            model);
      }));
    }
    return;
  }
  int number = 0;
  std::vector<at::Tensor> targets;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (std::find(written.begin(), written.end(), number) != written.end()) {
      Content* content = content_of(tensor);
      const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
      content->recipe = std::make_shared<RecordedStep>(call, number, -1, Geometry(tensor),
                                                       std::move(content->recipe), bytes);
      targets.push_back(tensor);
    }
    ++number;
  });
  for (size_t i = 0; i < op.schema->returns().size(); ++i) stack.emplace_back(targets[i]);
}

void run_now(const OperatorEntry& op, torch::jit::Stack& stack) {
  const BelowDeferred below;
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  Replay replay;
  int64_t bytes = 0;
  std::set<Recipe> seen;
  const auto value_of = [&](const at::Tensor& tensor) {
    const Content* content = content_of(tensor);
    if (content == nullptr) return tensor;
    bytes += bytes_behind(content->recipe, seen);
    OSLO_CHECK(bytes <= kMostBytesNow, op.name, " reads a tensor of shape ", tensor.sizes(),
               " under oslo::DeferredInit, where it has no content yet and is too large to be "
               "computed for that (64 MB at most); read it after initialize, or from a tensor that "
               "is made before the guard");
    return replay.value({Geometry(tensor), content->recipe});
  };
  for (size_t i = stack.size() - op.arguments; i < stack.size(); ++i) {
    stack[i] = with_tensors_in(stack[i], value_of);
  }
  op.handle.callBoxed(&stack);
}

}  // namespace oslo
