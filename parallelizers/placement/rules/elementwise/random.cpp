#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <mutex>

#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/door/initializer_guard.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/engine/in_place.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

bool per_rank(const Value& value) {
  return value.cut() && value.layout->context()->random_mode() == RandomMode::per_rank;
}

/// What this rank draws from for a cut value. The context's generator is the CPU's: a value on a
/// device gets a generator of that device whose seed it draws. So the one state is all that has to
/// be kept.
std::optional<at::Generator> sharded_generator(const Value& value) {
  at::Generator generator = value.layout->context()->sharded_generator();
  if (!generator.defined()) return std::nullopt;
  const c10::Device device = value.local.device();
  if (device.type() == generator.device().type() || device.is_meta()) return generator;
  uint64_t seed = 0;
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    seed = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  at::Generator own = at::globalContext()
                          .getAcceleratorHooksInterface(device.type())
                          .getNewGenerator(device.index());
  own.set_current_seed(seed);
  return own;
}

/// A whole tensor like the one that one device would draw into: same shape, same memory order.
at::Tensor whole_like(const at::Tensor& tensor, const Value& value) {
  if (placed_impl(tensor) != nullptr) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), value.local.options());
  }
  return at::empty(value.sizes(), value.local.options());
}

/// Ones where an element is kept, scaled so that the mean stays; zero elsewhere.
at::Tensor dropout_noise(const Call& call, const Value& x, double p) {
  if (per_rank(x)) {
    return at::empty_like(x.local).bernoulli_(1 - p, sharded_generator(x)).div_(1 - p);
  }
  at::Tensor noise = whole_like(call.tensor(0), x);
  if (x.local.is_cuda() && !call.op().in_place) {
    // A GPU's kernel draws for several elements at once, in an order of its own.
    noise = std::get<0>(at::native_dropout(noise.fill_(1), p, /*train=*/true));
  } else {
    noise.bernoulli_(1 - p).div_(1 - p);
  }
  return x.cut() ? local_part(noise, *x.layout).contiguous() : noise;
}

/// dropout, dropout_: the mask that one device would draw, or this rank's own (RandomMode).
void dropout(Call& call) {
  const Value x = call.value(0);
  const double p = call.number(1);
  if (!call.boolean(2) || p == 0 || x.local.numel() + x.size(0) == 0) {
    return call.result_plain(call.tensor(0));
  }
  if (p == 1) return call.result({x.local * at::zeros_like(x.local), x.layout});
  Value y{x.local * dropout_noise(call, x, p), x.layout};
  if (call.op().in_place) {
    write_to(call.tensor(0), y, call.name());
    return call.result_plain(call.tensor(0));
  }
  call.result(std::move(y));
}

/// rrelu, rrelu_ (self, lower, upper, training): slopes of negative elements are drawn for all of
/// them; otherwise the slope is the middle.
void random_slope(Call& call) {
  if (call.boolean(3)) {
    constexpr const char* kDraws = "draws a number for each negative element";
    return call.op().in_place ? gather_in_place(call, kDraws) : call.gather(kDraws);
  }
  at::Tensor x = call.tensor(0);
  const double slope = (call.number(1) + call.number(2)) / 2;
  // Its kernel makes a contiguous result of any.
  call.result_plain(call.op().in_place ? at::leaky_relu_(x, slope)
                                       : at::leaky_relu(x.contiguous(), slope));
}

/// normal_, uniform_ and their like on a cut tensor: drawn whole, each rank keeps its part.
void fill_at_random(Call& call) {
  const at::Tensor target = call.tensor(0);
  refuse_initializers_of_parts(target);
  check_writable(target, call.name());
  const Mark* mark = mark_of(target);
  // Where another stage holds it the call's value is drawn, too, and dropped.
  const bool here = mark != nullptr && mark->layout->here();
  const Value x = here ? Value{unmarked_alias(target), mark->layout} : call.value(0);
  std::vector<c10::IValue> arguments;
  for (size_t i = 0; i < call.size(); ++i) arguments.push_back(call.argument(i));
  if (per_rank(x)) {
    arguments[0] = at::empty_like(x.local);
    if (arguments.back().isNone()) {
      // Each call draws a seed where the value is on a device.
      if (const auto generator = sharded_generator(x)) arguments.back() = *generator;
    }
    write_to(target, {call.call_with(arguments)[0].toTensor(), x.layout}, call.name());
  } else {
    arguments[0] = whole_like(target, x);
    const at::Tensor drawn = call.call_with(arguments)[0].toTensor();
    const at::Tensor part = x.layout ? local_part(drawn, *x.layout) : drawn;
    write_to(target, {part, x.layout}, call.name());
  }
  if (resets_padded_table(target)) target.select(0, mark->padding_row).zero_();
  call.result_plain(target);
}

/// The operator's overload with a generator, which stands before type, layout, device, pinned
/// memory and memory format.
at::Tensor draw_like(const Call& call, std::vector<c10::IValue> arguments,
                     at::Generator generator) {
  constexpr int kOptions = 5;
  const auto& name = call.op().handle.operator_name();
  const char* overload = name.overload_name.empty() ? "generator" : "low_generator_dtype";
  arguments.insert(arguments.end() - kOptions, std::move(generator));
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), overload).callBoxed(&stack);
  return stack[0].toTensor();
}

/// rand_like and its like.
void random_like(Call& call) {
  const Value x = call.value(0);
  std::vector<c10::IValue> arguments;
  for (size_t i = 0; i < call.size(); ++i) arguments.push_back(call.argument(i));
  if (per_rank(x)) {
    arguments[0] = x.local;
    const auto generator = sharded_generator(x);
    return call.result({generator ? draw_like(call, std::move(arguments), *generator)
                                  : call.call_with(std::move(arguments))[0].toTensor(),
                        x.layout});
  }
  arguments[0] = whole_like(call.tensor(0), x);
  const at::Tensor drawn = call.call_with(std::move(arguments))[0].toTensor();
  call.result({x.cut() ? local_part(drawn, *x.layout).contiguous() : drawn, x.layout});
}

}  // namespace

void add_random_rules(RuleTable& table) {
  table.add({"aten::dropout", "aten::dropout_"}, dropout);
  table.add({"aten::rrelu", "aten::rrelu_"}, random_slope);
  table.add({"aten::normal_", "aten::uniform_", "aten::bernoulli_.float", "aten::exponential_",
             "aten::log_normal_", "aten::cauchy_", "aten::geometric_", "aten::random_",
             "aten::random_.from", "aten::random_.to"},
            fill_at_random);
  table.add(
      {"aten::rand_like", "aten::randn_like", "aten::randint_like", "aten::randint_like.low_dtype"},
      random_like);
}

}  // namespace oslo
