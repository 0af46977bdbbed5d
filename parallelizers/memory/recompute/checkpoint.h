#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mpu/base/error.h"

namespace oslo {

/// What a `checkpoint` keeps for backward, and what it computes again.
class CheckpointOptions {
 public:
  /// Of one operator, such as "aten::mm", with its arguments: whether what it computes is kept.
  using KeepIf = std::function<bool(const std::string& op, c10::ArrayRef<c10::IValue> arguments)>;

  /// Results of these kinds of operators are kept, where backward needs them: "matmul" (products of
  /// matrices, linear layers, convolutions not among them), "convolution", "attention" (LibTorch's
  /// scaled dot product). Throws for other words.
  CheckpointOptions& keep(const std::vector<std::string>& kinds);
  /// The same by a function.
  CheckpointOptions& keep_if(KeepIf keep_if);
  /// Of what is asked to be kept as much as leaves, of all bytes that the function would leave for
  /// backward if nothing ran again, at most this share; its inputs count with both, parameters do
  /// not. What is cheapest to compute again for its bytes is given up first, by the multiplications
  /// that operators make: of a GPT-2 block half may stay for a twentieth of a step's products
  /// (docs/recomputation.md). Throws outside of (0, 1].
  CheckpointOptions& keep_at_most(double share);
  /// Also operators that backward needs nothing of are computed again, as `torch.utils.checkpoint`
  /// does. By default they are not: the last product of a function is mostly one.
  CheckpointOptions& whole(bool whole = true);

  const KeepIf& keep_if() const { return keep_if_; }
  double keep_at_most() const { return keep_at_most_; }
  bool whole() const { return whole_; }

 private:
  KeepIf keep_if_;
  double keep_at_most_ = 1;
  bool whole_ = false;
};

namespace recompute {

class Recorder;

/// While alive what this thread computes belongs to a segment. `again` runs it again; it holds
/// what it needs. Segments inside of a segment are part of it.
class Recording {
 public:
  Recording(const CheckpointOptions& options, std::function<void()> again);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// The segment has ended well: from here on what it saved is computed again.
  void end();

 private:
  struct Scopes;
  std::unique_ptr<Scopes> scopes_;
};

/// Calls a module that is held by a handle.
template <typename Holder>
struct Forward {
  Holder holder;
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs)
      -> decltype(holder->forward(std::forward<Inputs>(inputs)...)) {
    return holder->forward(std::forward<Inputs>(inputs)...);
  }
};

/// What is called: the function itself, or of a `torch::nn` module's holder, or a shared_ptr to a
/// module, its `forward`.
template <typename Function>
auto callable(Function function) {
  if constexpr (
      requires { typename Function::ContainedType; } ||
      requires { typename Function::element_type; }) {
    return Forward<Function>{std::move(function)};
  } else {
    return function;
  }
}

template <typename Function, typename... Inputs>
auto run(const CheckpointOptions& options, Function function, std::tuple<Inputs...> inputs) {
  struct Call {
    Function function;
    const std::tuple<Inputs...> inputs;
    decltype(auto) operator()() { return std::apply(function, inputs); }
  };
  const auto call = std::make_shared<Call>(Call{std::move(function), std::move(inputs)});
  Recording recording(options, [call] { static_cast<void>((*call)()); });
  if constexpr (std::is_void_v<decltype((*call)())>) {
    (*call)();
    recording.end();
  } else {
    auto result = (*call)();
    recording.end();
    return result;
  }
}

template <size_t... I, typename Function>
auto call_with(Function& function, const std::vector<at::Tensor>& inputs,
               std::index_sequence<I...> = {}) {
  OSLO_CHECK(inputs.size() == sizeof...(I), "checkpoint: the function takes ", sizeof...(I),
             " tensors, ", inputs.size(), " were given");
  return function(inputs[I]...);
}

template <typename Function, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return std::is_invocable_v<Function&, decltype((void(I), std::declval<const at::Tensor&>()))...>;
}

/// The number of tensors that the function takes; those after eight are not looked for.
template <typename Function, size_t Number = 1>
constexpr size_t tensors_taken() {
  static_assert(Number <= 8,
                "checkpoint(function, {inputs...}): the function takes neither a "
                "std::vector<torch::Tensor> nor one to eight tensors");
  if constexpr (takes<Function>(std::make_index_sequence<Number>())) {
    return Number;
  } else {
    return tensors_taken<Function, Number + 1>();
  }
}

template <typename Function>
auto run_list(const CheckpointOptions& options, Function function, std::vector<at::Tensor> inputs) {
  if constexpr (std::is_invocable_v<Function&, const std::vector<at::Tensor>&>) {
    return run(options, std::move(function), std::make_tuple(std::move(inputs)));
  } else {
    const auto expanded = [function = std::move(function)](
                              const std::vector<at::Tensor>& tensors) mutable {
      return call_with(function, tensors, std::make_index_sequence<tensors_taken<Function>()>());
    };
    return run(options, expanded, std::make_tuple(std::move(inputs)));
  }
}

}  // namespace recompute

/// Calls `function(inputs...)` and returns what it returns: a tensor, a vector, a tuple, anything.
/// What its operators save for backward is not kept, but computed again when backward first asks
/// for some of it (Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174),
/// once a backward pass, by calling the function again. Gradients are those of the plain call, bit
/// for bit.
///
///   auto h = oslo::checkpoint([&](const torch::Tensor& x) { return block->forward(x); }, x);
///   auto h = oslo::checkpoint(block, x, mask);            // a module
///   auto h = oslo::checkpoint(function, {x, mask});       // of tensors, or of a vector of them
///
/// - Kept: inputs and parameters (all that was there before), integers and truth values that the
///   rest needs, results of operators that are asked to be kept. All else is let go when the
///   function returns. Operators that backward needs nothing of do not run again (`whole`).
/// - Running again, every operator is compared with the recorded one; the first that differs, by
///   name, shapes or types, is an error that names it. Random numbers are drawn again as they were
///   (dropout), and generators stand afterwards where they stood; autocast, gradient mode and the
///   keys of the thread are those of forward; autocast's cache of casts is off in the function.
///   Elements that the program reads (`item`, `nonzero`, `topk`'s indices) are those of forward.
///   Running statistics are updated once.
/// - `function` and `inputs` are copied, tensors as handles, and live as long as the graph does.
///   What the function captures by reference must live as long, and be the same. Non-tensors are
///   handed on as they are. Hooks on tensors in it fire once.
/// - An input or a parameter that is written after the call is LibTorch's error about in-place
///   operations. So is, at once, a function that computes with a tensor from before and then writes
///   it in place.
/// - Inside of a checkpointed function `checkpoint` is the plain call. So it is where no gradients
///   are recorded.
/// - Placed tensors: all ranks call it alike; collectives in it are made, and counted, in forward
///   and again in backward, those of kept operators once. In a pipeline's step what came from
///   other stages is kept, and nothing is sent again.
///
/// On one rank, without parallelism, it works the same. Cost: another forward of what is needed;
/// some 2 microseconds and about 1 KiB for each operator. Thread safety: calls on several threads
/// do not meet; backward may run on any. Throws what the function throws.
template <typename Function, typename... Inputs>
auto checkpoint(const CheckpointOptions& options, Function function, const Inputs&... inputs) {
  return recompute::run(options, recompute::callable(std::move(function)),
                        std::tuple<std::decay_t<Inputs>...>(inputs...));
}

template <typename Function>
auto checkpoint(const CheckpointOptions& options, Function function,
                std::vector<at::Tensor> inputs) {
  return recompute::run_list(options, recompute::callable(std::move(function)), std::move(inputs));
}

template <typename Function, typename... Inputs,
          typename = std::enable_if_t<!std::is_same_v<Function, CheckpointOptions>>>
auto checkpoint(Function function, const Inputs&... inputs) {
  return checkpoint(CheckpointOptions(), std::move(function), inputs...);
}

template <typename Function,
          typename = std::enable_if_t<!std::is_same_v<Function, CheckpointOptions>>>
auto checkpoint(Function function, std::vector<at::Tensor> inputs) {
  return checkpoint(CheckpointOptions(), std::move(function), std::move(inputs));
}

}  // namespace oslo
