#include "tests/user_operators_test/library.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "parallelizers/placement/engine/register_rule.h"

namespace user_operators {
namespace {

template <typename Signature>
auto op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}
using Two = Tensor(const Tensor&, const Tensor&);
using Peaks = std::tuple<Tensor, Tensor>(const Tensor&);

Tensor product_on_cpu(const Tensor& x, const Tensor& weight) {
  const Tensor rows = x.contiguous().view({-1, x.size(-1)}), by_row = weight.contiguous();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(1);
  Tensor result = torch::zeros(sizes, x.options());
  const auto a = rows.accessor<double, 2>();
  const auto b = by_row.accessor<double, 2>();
  auto* out = result.mutable_data_ptr<double>();
  for (int64_t m = 0; m < a.size(0); ++m) {
    for (int64_t n = 0; n < b.size(1); ++n) {
      for (int64_t k = 0; k < a.size(1); ++k) out[m * b.size(1) + n] += a[m][k] * b[k][n];
    }
  }
  return result;
}

template <Tensor (*call)(const Tensor&, const Tensor&)>
struct Product : torch::autograd::Function<Product<call>> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& weight) {
    context->save_for_backward({x, weight});
    const at::AutoDispatchBelowADInplaceOrView below;
    return call(x, weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor rows = saved[0].reshape({-1, saved[0].size(-1)});
    const Tensor gradient = gradients[0].reshape({rows.size(0), saved[1].size(1)});
    return {gradient.mm(saved[1].t()).view(saved[0].sizes()), rows.t().mm(gradient)};
  }
};

std::tuple<Tensor, Tensor> find_peaks(const Tensor& x) {
  const Tensor rows = x.detach().contiguous().view({-1, x.size(-1)});
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.pop_back();
  Tensor most = torch::empty({rows.size(0)}, x.options().requires_grad(false));
  const auto* from = rows.const_data_ptr<double>();
  auto* to = most.mutable_data_ptr<double>();
  for (int64_t m = 0; m < rows.size(0); ++m) {
    to[m] = *std::max_element(from + m * rows.size(1), from + (m + 1) * rows.size(1));
  }
  return {(rows - most.unsqueeze(1)).view(x.sizes()), most.view(sizes)};
}

Tensor add_up(const std::vector<Tensor>& xs, const std::optional<Tensor>& scale) {
  Tensor sum = xs[0];
  for (size_t i = 1; i < xs.size(); ++i) sum = sum + xs[i];
  return scale ? sum * *scale : sum;
}

TORCH_LIBRARY(user_operators, library) {
  library.def("product(Tensor x, Tensor weight) -> Tensor");
  library.def("unruled_product(Tensor x, Tensor weight) -> Tensor");
  library.def("peaks(Tensor x) -> (Tensor, Tensor)", find_peaks);
  library.def("unruled_peaks(Tensor x) -> (Tensor, Tensor)", find_peaks);
  library.def("sum_of(Tensor[] xs, Tensor? scale) -> Tensor", add_up);
  library.def("square(Tensor x) -> Tensor", {at::Tag::pointwise});
  library.def("sums_from_behind(Tensor x) -> Tensor",
              [](const Tensor& x) { return x.flip(0).cumsum(0).flip(0); });
  // For what registering refuses.
  library.def("never_called(Tensor x, int n) -> Tensor");
  library.def("writes(Tensor(a!) x) -> Tensor(a!)");
  library.def("writes_out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("views(Tensor(a) x) -> Tensor(a)");
  library.def("counts(Tensor x) -> int");
  library.def("draws(Tensor x) -> Tensor", {at::Tag::nondeterministic_seeded});
}

TORCH_LIBRARY_IMPL(user_operators, CPU, library) {
  library.impl("product", product_on_cpu);
  library.impl("unruled_product", product_on_cpu);
  library.impl("square", [](const Tensor& x) { return x * x; });
}

TORCH_LIBRARY_IMPL(user_operators, Autograd, library) {
  library.impl("product", [](const Tensor& x, const Tensor& weight) {
    return Product<product>::apply(x, weight);
  });
  library.impl("unruled_product", [](const Tensor& x, const Tensor& weight) {
    return Product<unruled_product>::apply(x, weight);
  });
}

[[maybe_unused]] const bool registered = [] {
  oslo::register_rule("user_operators::product", "..K, KN -> ..N");
  oslo::register_rule("user_operators::peaks", "..K -> ..K, ..", "K");
  oslo::register_rule("user_operators::sum_of", "..K, K -> ..K");
  oslo::register_rule("user_operators::sums_from_behind", [](oslo::Call& call) {
    call.result_plain(call.tensor(0).flip(0).cumsum(0).flip(0));
  });
  return true;
}();

}  // namespace

Tensor product(const Tensor& x, const Tensor& weight) {
  static const auto call = op<Two>("user_operators::product");
  return call.call(x, weight);
}

Tensor unruled_product(const Tensor& x, const Tensor& weight) {
  static const auto call = op<Two>("user_operators::unruled_product");
  return call.call(x, weight);
}

std::tuple<Tensor, Tensor> peaks(const Tensor& x) {
  static const auto call = op<Peaks>("user_operators::peaks");
  return call.call(x);
}

std::tuple<Tensor, Tensor> unruled_peaks(const Tensor& x) {
  static const auto call = op<Peaks>("user_operators::unruled_peaks");
  return call.call(x);
}

Tensor sum_of(const std::vector<Tensor>& xs, const std::optional<Tensor>& scale) {
  static const auto call = op<Tensor(const std::vector<Tensor>&, const std::optional<Tensor>&)>(
      "user_operators::sum_of");
  return call.call(xs, scale);
}

Tensor square(const Tensor& x) {
  static const auto call = op<Tensor(const Tensor&)>("user_operators::square");
  return call.call(x);
}

Tensor sums_from_behind(const Tensor& x) {
  static const auto call = op<Tensor(const Tensor&)>("user_operators::sums_from_behind");
  return call.call(x);
}

}  // namespace user_operators
