#include "checkpoint/resume/optimizer_kind.h"

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <tuple>
#include <typeinfo>

#include "mpu/base/error.h"

namespace oslo {
namespace {

namespace optim = torch::optim;

// The fields of each optimizer, once for reading and writing: `visit(name, value&)`.

template <typename Visit>
void visit_fields(optim::SGDOptions& options, Visit& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}
template <typename Visit>
void visit_fields(optim::SGDParamState& state, Visit& visit) {
  visit("momentum_buffer", state.momentum_buffer());
}

template <typename Options, typename Visit>
void visit_adam_options(Options& options, Visit& visit) {
  visit("lr", options.lr());
  visit("beta1", std::get<0>(options.betas()));
  visit("beta2", std::get<1>(options.betas()));
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}
template <typename State, typename Visit>
void visit_adam_state(State& state, Visit& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
}
template <typename Visit>
void visit_fields(optim::AdamOptions& options, Visit& visit) {
  visit_adam_options(options, visit);
}
template <typename Visit>
void visit_fields(optim::AdamWOptions& options, Visit& visit) {
  visit_adam_options(options, visit);
}
template <typename Visit>
void visit_fields(optim::AdamParamState& state, Visit& visit) {
  visit_adam_state(state, visit);
}
template <typename Visit>
void visit_fields(optim::AdamWParamState& state, Visit& visit) {
  visit_adam_state(state, visit);
}

template <typename Visit>
void visit_fields(optim::AdagradOptions& options, Visit& visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}
template <typename Visit>
void visit_fields(optim::AdagradParamState& state, Visit& visit) {
  visit("step", state.step());
  visit("sum", state.sum());
}

template <typename Visit>
void visit_fields(optim::RMSpropOptions& options, Visit& visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}
template <typename Visit>
void visit_fields(optim::RMSpropParamState& state, Visit& visit) {
  visit("step", state.step());
  visit("square_avg", state.square_avg());
  visit("momentum_buffer", state.momentum_buffer());
  visit("grad_avg", state.grad_avg());
}

/// Takes the fields out.
struct TakeFields {
  OptimizerKind::State& parts;

  void operator()(const char* name, double value) { parts.numbers[name] = value; }
  void operator()(const char* name, bool value) { parts.numbers[name] = value ? 1 : 0; }
  void operator()(const char* name, int64_t value) {
    parts.numbers[name] = static_cast<double>(value);
  }
  void operator()(const char* name, const at::Tensor& value) {
    if (value.defined()) parts.tensors.emplace_back(name, value);
  }
};

/// Puts them in, and notes which tensors there are.
struct PutFields {
  const OptimizerKind::State& parts;
  const std::string& kind;
  std::set<std::string> tensors = {};

  double number(const char* name) const {
    const auto found = parts.numbers.find(name);
    OSLO_CHECK(found != parts.numbers.end(), "the saved ", kind, " has no '", name, "'");
    return found->second;
  }
  void operator()(const char* name, double& value) { value = number(name); }
  void operator()(const char* name, bool& value) {
    const double saved = number(name);
    OSLO_CHECK(saved == 0 || saved == 1, "the saved ", kind, "'s '", name, "' is ", saved,
               ", neither 0 nor 1");
    value = saved == 1;
  }
  void operator()(const char* name, int64_t& value) {
    const double saved = number(name);
    OSLO_CHECK(saved == std::trunc(saved) && std::abs(saved) < 9e15, "the saved ", kind, "'s '",
               name, "' is ", saved, ", no whole number");
    value = static_cast<int64_t>(saved);
  }
  void operator()(const char* name, at::Tensor& value) {
    tensors.insert(name);
    for (const auto& [known, tensor] : parts.tensors) {
      if (known == name) value = tensor;
    }
  }
};

template <typename Optimizer, typename Options, typename ParamState>
class Kind final : public OptimizerKind {
 public:
  explicit Kind(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }
  bool is(const torch::optim::Optimizer& optimizer) const override {
    return dynamic_cast<const Optimizer*>(&optimizer) != nullptr;
  }

  Numbers options(const optim::OptimizerOptions& options) const override {
    Options copy = typed<Options>(options);
    State parts;
    TakeFields take{parts};
    visit_fields(copy, take);
    return parts.numbers;
  }

  void set_options(optim::OptimizerOptions& options, const Numbers& numbers) const override {
    Options copy = typed<Options>(options);
    const State parts{numbers, {}};
    PutFields put{parts, name_};
    visit_fields(copy, put);
    // In place: a program may hold a reference to a group's options.
    static_cast<Options&>(options) = copy;
  }

  State state(const optim::OptimizerParamState& state) const override {
    ParamState copy = typed<ParamState>(state);
    State parts;
    TakeFields take{parts};
    visit_fields(copy, take);
    return parts;
  }

  std::unique_ptr<optim::OptimizerParamState> make_state(const State& parts) const override {
    auto state = std::make_unique<ParamState>();
    PutFields put{parts, name_};
    visit_fields(*state, put);
    for (const auto& [name, _] : parts.tensors) {
      OSLO_CHECK(put.tensors.count(name) > 0, "the checkpoint has a state tensor '", name, "', ",
                 name_, " has none of that name");
    }
    return state;
  }

 private:
  template <typename Wanted, typename Base>
  const Wanted& typed(const Base& value) const {
    const auto* wanted = dynamic_cast<const Wanted*>(&value);
    OSLO_CHECK(wanted != nullptr, "an optimizer derived from ", name_, " keeps ",
               c10::demangle(typeid(value).name()),
               ", which can be neither saved nor resharded; save it with SaveOptions().extra(...)");
    return *wanted;
  }

  std::string name_;
};

const std::array<const OptimizerKind*, 5>& kinds() {
  static const Kind<optim::SGD, optim::SGDOptions, optim::SGDParamState> sgd("SGD");
  static const Kind<optim::Adam, optim::AdamOptions, optim::AdamParamState> adam("Adam");
  static const Kind<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState> adamw("AdamW");
  static const Kind<optim::Adagrad, optim::AdagradOptions, optim::AdagradParamState> adagrad(
      "Adagrad");
  static const Kind<optim::RMSprop, optim::RMSpropOptions, optim::RMSpropParamState> rmsprop(
      "RMSprop");
  static const std::array<const OptimizerKind*, 5> all = {&sgd, &adam, &adamw, &adagrad, &rmsprop};
  return all;
}

}  // namespace

const OptimizerKind& kind_of(const torch::optim::Optimizer& optimizer) {
  for (const OptimizerKind* kind : kinds()) {
    if (kind->is(optimizer)) return *kind;
  }
  OSLO_CHECK(dynamic_cast<const optim::LBFGS*>(&optimizer) == nullptr,
             "the state of LBFGS cannot be saved or resharded: it is one vector over all "
             "parameters, which no other layout could take apart; leave optimizer(...) out of the "
             "options, and LBFGS starts anew from the weights");
  fail("the state of a ", c10::demangle(typeid(optimizer).name()),
       " cannot be saved or resharded: SGD, Adam, AdamW, Adagrad and RMSprop of LibTorch, and "
       "classes derived from them, can; save its state with SaveOptions().extra(...)");
}

}  // namespace oslo
