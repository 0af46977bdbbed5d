#include "parallelizers/plan/dry/work_meter.h"

#include <ATen/Context.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "mpu/base/error.h"
#include "mpu/collectives/collectives.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/local_of.h"

namespace oslo {

/// How an operator's time depends on its arguments.
enum class WorkKind {
  nothing,
  view,
  part,
  product,
  convolution,
  attention,
  function,
  lookup,
  copy
};

namespace {

thread_local WorkMeter* current_meter = nullptr;

constexpr const char* kAttention = "aten::scaled_dot_product_attention";

template <size_t N>
using Names = std::array<std::string_view, N>;

// Without overloads: all of one name work alike.
constexpr Names<8> kProducts = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm",
                                "aten::mv", "aten::addmv", "aten::dot", "aten::linear"};
constexpr Names<3> kConvolutions = {"aten::convolution", "aten::_convolution",
                                    "aten::convolution_overrideable"};
constexpr Names<26> kFunctions = {"aten::gelu",
                                  "aten::tanh",
                                  "aten::sigmoid",
                                  "aten::silu",
                                  "aten::mish",
                                  "aten::softplus",
                                  "aten::elu",
                                  "aten::exp",
                                  "aten::log",
                                  "aten::sin",
                                  "aten::cos",
                                  "aten::erf",
                                  "aten::pow",
                                  "aten::_softmax",
                                  "aten::_log_softmax",
                                  "aten::logsumexp",
                                  "aten::native_dropout",
                                  "aten::bernoulli",
                                  "aten::bernoulli_",
                                  "aten::rand",
                                  "aten::randn",
                                  "aten::rand_like",
                                  "aten::randn_like",
                                  "aten::uniform_",
                                  "aten::normal_",
                                  "aten::multinomial"};
constexpr Names<7> kLookups = {"aten::embedding",         "aten::index",
                               "aten::index_select",      "aten::gather",
                               "aten::embedding_renorm_", "aten::nll_loss_forward",
                               "aten::_embedding_bag"};
constexpr Names<9> kParts = {"aten::slice",  "aten::select",           "aten::narrow",
                             "aten::split",  "aten::split_with_sizes", "aten::chunk",
                             "aten::unbind", "aten::expand",           "aten::diagonal"};

template <size_t N>
bool among(const Names<N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

WorkKind kind_of_work(const OperatorEntry& op) {
  const std::string_view name = std::string_view(op.name).substr(0, op.name.find('.'));
  if (name.starts_with("aten::empty") || name.starts_with("aten::new_empty")) {
    return WorkKind::nothing;
  }
  if (among(kProducts, name)) return WorkKind::product;
  if (among(kConvolutions, name)) return WorkKind::convolution;
  if (name.starts_with("aten::_scaled_dot_product") || name == kAttention) {
    return WorkKind::attention;
  }
  if (among(kFunctions, name)) return WorkKind::function;
  if (among(kLookups, name)) return WorkKind::lookup;
  if (among(kParts, name)) return WorkKind::part;
  return op.view ? WorkKind::view : WorkKind::copy;
}

/// Whether others do its work, and are counted.
bool comes_in_parts(const OperatorEntry& op) {
  return op.composite && kind_of_work(op) != WorkKind::attention;
}

/// LibTorch runs a whole LSTM of floats on a CPU by one oneDNN kernel, which takes less time than
/// the parts that are counted: 0.29 to 0.47 of it, forward and backward, for 16 to 1024 hidden
/// units on a processor with AVX-512.
constexpr double kOneKernel = 0.4;

bool runs_as_one_kernel(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.name != "aten::lstm.input" || !at::globalContext().userEnabledMkldnn()) return false;
  bool one = at::hasMKLDNN();
  const auto look_at = [&](const at::Tensor& tensor) {
    one &= tensor.is_cpu() && tensor.scalar_type() == at::kFloat && !value_of(tensor).cut();
  };
  for (const c10::IValue& argument : arguments.slice(0, 3)) for_each_tensor_in(argument, look_at);
  const at::Tensor h = arguments[1].toTensorVector()[0], c = arguments[1].toTensorVector()[1];
  return one && h.size(2) == c.size(2);  // no projection
}

double bytes_of_tensor(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
}

/// Rates are those of floats: wider numbers take as much longer.
double width(const at::Tensor& tensor) {
  return std::max(1.0, static_cast<double>(tensor.element_size()) / 4);
}

double element_count(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

}  // namespace

/// An operator that has begun: what its arguments tell.
struct WorkMeter::Call : at::ObserverContext {
  WorkKind kind = WorkKind::copy;
  bool placed = false;          ///< arguments are: others run for it, and it costs the door
  bool writes = false;          ///< in place
  double bytes = 0;             ///< of all arguments
  double gradient_bytes = 0;    ///< of those that need a gradient
  double operations = 0;        ///< floating-point; of a convolution for an element of the result
  double least_operations = 0;  ///< of a transposed convolution: all
  int factors_in_graph = 0;     ///< of a product: those that need a gradient
  bool in_graph = false;
  double began = -1;  ///< of one kernel that is counted by its parts: the seconds before; else -1
};

WorkMeter::WorkMeter(const Rates& rates) : rates_(rates) {
  OSLO_CHECK(current_meter == nullptr, "a WorkMeter counts on this thread already");
  current_meter = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

WorkMeter::~WorkMeter() {
  at::removeCallback(handle_);
  current_meter = nullptr;
}

/// The operator, unless it is made of others, which come by themselves, and has no rule either.
const OperatorEntry* WorkMeter::entry(const at::RecordFunction& function) {
  const OperatorEntry* const op = entries_.of(function);
  return op != nullptr && comes_in_parts(*op) && op->rule == nullptr ? nullptr : op;
}

std::unique_ptr<WorkMeter::Call> WorkMeter::read(const OperatorEntry& op,
                                                 c10::ArrayRef<c10::IValue> arguments) const {
  auto call = std::make_unique<Call>();
  call->kind = kind_of_work(op);
  call->writes = op.in_place;
  c10::SmallVector<at::Tensor, 4> tensors;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor_in(argument, [&](const at::Tensor& tensor) {
      call->placed |= tensor.key_set().has(kPlacedKey);
      tensors.push_back(local_of(tensor));
    });
  }
  if (call->placed && call->kind != WorkKind::attention) return call;
  const bool records = c10::GradMode::is_enabled();
  for (const at::Tensor& tensor : tensors) {
    call->bytes += bytes_of_tensor(tensor);
    if (!records || !tensor.requires_grad()) continue;
    call->in_graph = true;
    call->gradient_bytes += bytes_of_tensor(tensor);
  }
  const auto factors = [&](const at::Tensor& a, const at::Tensor& b) {
    call->factors_in_graph = records ? a.requires_grad() + b.requires_grad() : 0;
  };
  if (call->kind == WorkKind::product && tensors.size() > 1) {
    const bool adds = op.name.starts_with("aten::add") || op.name.starts_with("aten::badd");
    const size_t left = adds && tensors.size() > 2 ? 1 : 0;
    const at::Tensor &a = tensors[left], &b = tensors[left + 1];
    const double columns = b.dim() < 2 ? 1 : static_cast<double>(b.size(-1));
    call->operations = 2 * element_count(a) * columns * width(a);
    factors(a, b);
  } else if (call->kind == WorkKind::convolution && tensors.size() > 1) {
    const at::Tensor &x = tensors[0], &weight = tensors[1];
    const double each = 2 * element_count(weight) / std::max<double>(1, weight.size(0)) * width(x);
    const bool transposed = arguments.size() > 6 && arguments[6].isBool() && arguments[6].toBool();
    (transposed ? call->least_operations : call->operations) =
        transposed ? each * element_count(x) : each;
    factors(x, weight);
  } else if (call->kind == WorkKind::attention && tensors.size() > 2) {
    const at::Tensor &q = tensors[0], &k = tensors[1], &v = tensors[2];
    const double keys = k.dim() < 2 ? 1 : static_cast<double>(k.size(-2));
    const double wide = static_cast<double>(q.size(-1) + v.size(-1));
    call->operations =
        2 * element_count(q) / std::max<double>(1, q.size(-1)) * keys * wide * width(q);
  }
  return call;
}

double WorkMeter::forward(const Call& call, double bytes) const {
  switch (call.kind) {
    case WorkKind::nothing:
      return 0;
    case WorkKind::view:
    case WorkKind::part:
      return rates_.copy.seconds(0);
    case WorkKind::product:
    case WorkKind::convolution:
    case WorkKind::attention:
      return std::max(rates_.multiply.seconds(call.operations), rates_.copy.seconds(bytes));
    case WorkKind::function:
      return rates_.function.seconds(bytes);
    default:
      return rates_.copy.seconds(bytes);
  }
}

double WorkMeter::backward(const Call& call, double bytes, double result_bytes) const {
  switch (call.kind) {
    case WorkKind::nothing:
      return 0;
    case WorkKind::view:
      return rates_.copy.seconds(0);
    case WorkKind::product:
    case WorkKind::convolution:
      return call.factors_in_graph * forward(call, bytes);
    case WorkKind::attention:  // scores once more, and a product for each gradient
      return 2.5 * forward(call, bytes);
    case WorkKind::function:
      return rates_.function.seconds(bytes + call.gradient_bytes);
    default:
      return rates_.copy.seconds(result_bytes + call.gradient_bytes);
  }
}

/// What was gathered for a product waits for its backward, once for all products of one value. A
/// product may come in parts: whatever sees the gathered value first counts it.
void WorkMeter::keep_gathered(const Call& call, c10::ArrayRef<c10::IValue> arguments) {
  if (call.placed || !call.in_graph) return;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor_in(argument, [&](const at::Tensor& tensor) {
      NodePtr node = gathered_by(tensor);
      if (!node || node == gathering_) return;
      gathering_ = std::move(node);
      work_.kept_bytes += static_cast<int64_t>(bytes_of_tensor(tensor));
    });
  }
}

void WorkMeter::count(const Call& begun, c10::ArrayRef<c10::IValue> results) {
  Call call = begun;
  double result_bytes = 0, result_elements = 0;
  for (const c10::IValue& result : results) {
    for_each_tensor_in(result, [&](const at::Tensor& tensor) {
      result_bytes += bytes_of_tensor(local_of(tensor));
      result_elements += element_count(local_of(tensor));
    });
  }
  if (call.kind == WorkKind::convolution) {
    call.operations = call.operations * result_elements + call.least_operations;
  }
  double bytes = call.bytes + result_bytes;
  if (call.kind == WorkKind::lookup) bytes = 2 * result_bytes;
  work_.seconds += rates_.in_a_step * forward(call, bytes);
  work_.operations += call.operations;
  if (!call.in_graph) return;
  work_.seconds += rates_.in_a_step * (backward(call, bytes, result_bytes) + 2 * rates_.graph);
  const int products = call.kind == WorkKind::attention ? 5 : 2 * call.factors_in_graph;
  work_.operations += call.operations * products / 2;
  const bool anew = call.kind != WorkKind::view && call.kind != WorkKind::part && !call.writes;
  if (anew) work_.kept_bytes += static_cast<int64_t>(result_bytes);
}

std::unique_ptr<at::ObserverContext> WorkMeter::begin(const at::RecordFunction& function) {
  WorkMeter* const meter = current_meter;
  if (meter == nullptr || meter->depth_ > 0) {
    if (meter != nullptr) ++meter->depth_;
    return nullptr;
  }
  const OperatorEntry* const op = meter->entry(function);
  if (op == nullptr) return nullptr;
  const auto inputs = function.inputs();
  const c10::ArrayRef<c10::IValue> arguments(inputs.data(), inputs.size());
  auto call = meter->read(*op, arguments);
  meter->keep_gathered(*call, arguments);
  if (call->placed) {
    ++meter->work_.placed;
    meter->work_.seconds += meter->rates_.placed * (c10::GradMode::is_enabled() ? 2 : 1);
    if (runs_as_one_kernel(*op, arguments)) {
      call->began = meter->work_.seconds;
      return call;
    }
    if (call->kind != WorkKind::attention) return nullptr;
  }
  if (comes_in_parts(*op)) return nullptr;
  ++meter->depth_;
  return call;
}

void WorkMeter::end(const at::RecordFunction& function, at::ObserverContext* context) {
  WorkMeter* const meter = current_meter;
  if (meter == nullptr) return;
  if (context == nullptr) {
    if (meter->depth_ > 0) --meter->depth_;
    return;
  }
  if (const double began = static_cast<Call*>(context)->began; began >= 0) {
    meter->work_.seconds = began + kOneKernel * (meter->work_.seconds - began);
    return;
  }
  meter->depth_ = 0;
  meter->count(*static_cast<Call*>(context), function.outputs());
}

void WorkMeter::note(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
                     c10::ArrayRef<c10::IValue> results) {
  if (depth_ > 0) return;
  const auto call = read(op, arguments);
  keep_gathered(*call, arguments);
  count(*call, results);
}

}  // namespace oslo
