#pragma once

#include <torch/torch.h>

#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "parallelizers/placement/layout/placement.h"
#include "parallelizers/placement/layout/weight_uses.h"

// Random programs over the rule table: a few leaves and operators on whatever was computed so far.
// The same program runs on ordinary and on placed tensors.
namespace random_program {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Numbers = std::vector<int64_t>;

/// An operator on tensors, with numbers that it takes modulo whatever fits the shapes.
struct Operator {
  const char* name;
  size_t operands;
  std::function<Tensor(const Tensors&, const Numbers&)> run;
};

inline int64_t dim_of(const Tensor& x, int64_t number) {
  return x.dim() == 0 ? 0 : number % x.dim();
}

/// Numbers in [-1, 1] that depend on the sizes only.
inline Tensor constants(at::IntArrayRef sizes, double start) {
  const int64_t count = c10::multiply_integers(sizes);
  return torch::sin(torch::arange(count, torch::kDouble) * 1.3 + start).view(sizes);
}

inline Tensor places(int64_t count, int64_t below, int64_t start) {
  return (torch::arange(count) * 7 + start).remainder(std::max<int64_t>(1, below));
}

/// Another shape of as many elements: two dimensions joined, or one split.
inline Numbers other_shape(const Tensor& x, const Numbers& n) {
  Numbers sizes = x.sizes().vec();
  const int64_t d = dim_of(x, n[0]);
  if (n[1] % 2 == 0 && d + 1 < x.dim()) {
    sizes[d] *= sizes[d + 1];
    sizes.erase(sizes.begin() + d + 1);
    return sizes;
  }
  for (const int64_t factor : {n[2] % 5 + 2, int64_t{2}, int64_t{3}}) {
    if (sizes.empty() || sizes[d] == 0 || sizes[d] % factor != 0) continue;
    sizes[d] /= factor;
    sizes.insert(sizes.begin() + d + n[3] % 2, factor);
    break;
  }
  return sizes;
}

/// A view of `x` that is no copy on one device.
inline Tensor some_view(const Tensor& x, const Numbers& n, size_t which) {
  const int64_t pick = n[which % n.size()] + static_cast<int64_t>(which),
                other = n[(which + 1) % n.size()];
  const int64_t d = dim_of(x, other), size = x.size(d);
  switch (pick % 7) {
    case 0:
      return x.select(d, other % std::max<int64_t>(1, size));
    case 1:
      return x.narrow(d, other % (size + 1), (size - other % (size + 1) + 1) / 2);
    case 2:
      return x.slice(d, other % 2, std::nullopt, 2);
    case 3:
      return d > 0 ? x.diagonal(other % 3 - 1, 0, d) : x;
    case 4:
      return x.transpose(0, d);
    case 5:
      return x.is_contiguous() ? x.view(other_shape(x, n)) : x.unsqueeze(d);
    default:
      return x.is_contiguous() ? x.view({-1}) : x;
  }
}

/// Writes through two views of one tensor, and views of these, while all are looked at.
inline Tensor write_through_views(const Tensor& x, const Tensor& y, const Numbers& n) {
  Tensor all = x * 1.0;
  Tensor first = some_view(all, n, 0), second = some_view(all, n, 1);
  const Tensor inner = first.dim() == 0 ? first : some_view(first, n, 2);
  first.mul_(0.7);
  second.add_(inner.sum() * 0.1);
  if (inner.numel() > 0) inner.copy_(inner.mean() * 0.5 + y.sum() * 0.1);
  all.mul_(1.1);
  first.add_(second.sum() * 0.2, 0.5);
  return all + first.sum() * inner.sum() + second.sum();
}

/// Smooth everywhere: ranks sum in another order, and a kink or a tie would make that visible.
inline const std::vector<Operator>& operators() {
  using X = const Tensors&;
  using N = const Numbers&;
  static const std::vector<Operator> table = {
      {"add", 2, [](X x, N) { return x[0] + x[1]; }},
      {"mul", 2, [](X x, N) { return x[0] * x[1]; }},
      {"sub", 2, [](X x, N n) { return torch::sub(x[0], x[1], double(n[0] % 3 + 1)); }},
      {"div", 2, [](X x, N) { return x[0] / (x[1] * x[1] + 1.5); }},
      {"where", 2,
       [](X x, N n) {
         return torch::where(constants({x[0].size(-1)}, double(n[0])) > 0, x[0], x[1]);
       }},
      {"tanh", 1, [](X x, N) { return x[0].tanh(); }},
      {"gelu", 1, [](X x, N) { return torch::gelu(x[0]); }},
      {"sigmoid", 1, [](X x, N) { return x[0].sigmoid() - 0.5; }},
      {"add_", 2,
       [](X x, N) {
         Tensor y = x[0].clone();
         return y.add_(x[1], 0.5);
       }},
      {"write to a slice", 1,
       [](X x, N n) {
         Tensor y = x[0] * 1.0;
         const int64_t d = dim_of(y, n[0]);
         y.narrow(d, 0, y.size(d) / 2).mul_(2.0);
         return y;
       }},
      {"write through views", 2, [](X x, N n) { return write_through_views(x[0], x[1], n); }},
      {"matmul", 2, [](X x, N) { return torch::matmul(x[0], x[1]); }},
      {"matmul with t", 2, [](X x, N) { return torch::matmul(x[0], x[1].transpose(-1, -2)); }},
      {"linear", 2, [](X x, N) { return torch::nn::functional::linear(x[0], x[1]); }},
      {"einsum", 2,
       [](X x, N) {
         return torch::einsum("...ij,kj->k...i", {x[0], x[1]});
       }},
      {"transpose", 1,
       [](X x, N n) { return x[0].transpose(dim_of(x[0], n[0]), dim_of(x[0], n[1])); }},
      {"reshape", 1, [](X x, N n) { return x[0].reshape(other_shape(x[0], n)); }},
      {"flatten", 1, [](X x, N) { return x[0].flatten(); }},
      {"unsqueeze", 1, [](X x, N n) { return x[0].unsqueeze(n[0] % (x[0].dim() + 1)); }},
      {"squeeze", 1, [](X x, N) { return x[0].squeeze(); }},
      {"narrow", 1,
       [](X x, N n) {
         const int64_t d = dim_of(x[0], n[0]), size = x[0].size(d);
         const int64_t start = n[1] % (size + 1);
         return x[0].narrow(d, start, n[2] % (size - start + 1));
       }},
      {"slice with a step", 1,
       [](X x, N n) {
         return x[0].slice(dim_of(x[0], n[0]), n[1] % 2, std::nullopt, n[2] % 2 + 2);
       }},
      {"select", 1,
       [](X x, N n) {
         const int64_t d = dim_of(x[0], n[0]);
         return x[0].select(d, n[1] % std::max<int64_t>(1, x[0].size(d)));
       }},
      {"chunk", 1,
       [](X x, N n) {
         const auto parts = x[0].chunk(n[1] % 3 + 1, dim_of(x[0], n[0]));
         return parts[static_cast<size_t>(n[2]) % parts.size()];
       }},
      {"cat", 2,
       [](X x, N n) {
         return torch::cat({x[0], x[1], x[0]}, dim_of(x[0], n[0]));
       }},
      {"stack", 2,
       [](X x, N n) {
         return torch::stack({x[0], x[1]}, n[0] % (x[0].dim() + 1));
       }},
      {"expand", 1,
       [](X x, N n) {
         Numbers sizes = x[0].sizes().vec();
         for (int64_t& size : sizes) size = size == 1 ? n[0] % 3 + 1 : -1;
         sizes.insert(sizes.begin(), n[1] % 3 + 1);
         return x[0].expand(sizes);
       }},
      {"repeat_interleave", 1,
       [](X x, N n) { return x[0].repeat_interleave(n[1] % 3 + 1, dim_of(x[0], n[0])); }},
      {"flip", 1, [](X x, N n) { return x[0].flip({dim_of(x[0], n[0])}); }},
      {"roll", 1, [](X x, N n) { return x[0].roll({n[1] % 5}, {dim_of(x[0], n[0])}); }},
      {"pad", 1,
       [](X x, N n) {
         return torch::constant_pad_nd(x[0], {n[0] % 3, n[1] % 3}, 0.25);
       }},
      {"sum", 1, [](X x, N n) { return x[0].sum(dim_of(x[0], n[0]), n[1] % 2 == 0) * 0.3; }},
      {"sum of all", 1, [](X x, N) { return x[0].sum() * 0.1; }},
      {"mean", 1, [](X x, N n) { return x[0].mean(dim_of(x[0], n[0]), n[1] % 2 == 0); }},
      {"softmax", 1, [](X x, N n) { return x[0].softmax(dim_of(x[0], n[0])); }},
      {"logsumexp", 1, [](X x, N n) { return x[0].logsumexp(dim_of(x[0], n[0])); }},
      {"layer_norm", 1, [](X x, N) { return torch::layer_norm(x[0], {x[0].size(-1)}); }},
      {"cumsum", 1, [](X x, N n) { return x[0].cumsum(dim_of(x[0], n[0])) * 0.4; }},
      {"index_select", 1,
       [](X x, N n) {
         const int64_t d = dim_of(x[0], n[0]);
         return x[0].index_select(d, places(n[1] % 5 + 1, x[0].size(d), n[2]));
       }},
      {"gather", 1,
       [](X x, N n) {
         const int64_t d = dim_of(x[0], n[0]);
         if (x[0].dim() == 0) return x[0] * 1.0;
         Numbers sizes = x[0].sizes().vec();
         sizes[d] = n[1] % 4 + 1;
         return x[0].gather(d,
                            places(c10::multiply_integers(sizes), x[0].size(d), n[2]).view(sizes));
       }},
      {"masked_fill", 1,
       [](X x, N n) {
         return x[0].masked_fill(constants({x[0].size(-1)}, double(n[0])) > 0.2, 0.5);
       }},
      {"tril", 1, [](X x, N n) { return x[0].tril(n[0] % 3 - 1); }},
      {"detach and add", 1, [](X x, N) { return x[0].detach() + x[0] * 0.5; }},
  };
  return table;
}

struct Leaf {
  Tensor whole;
  std::vector<oslo::Placement> placements;  ///< one an axis; empty: an ordinary tensor
  /// How a plan wants results and inputs of its products to lie; null: it is no weight of a plan.
  std::shared_ptr<const oslo::WeightUses> uses = {};
};

inline std::string to_string(const oslo::AxisUse& use) {
  using Result = oslo::AxisUse::Result;
  std::ostringstream text;
  text << " [";
  if (use.result == Result::scatter) text << "scatter=" << use.dim << " ";
  if (use.result == Result::split) text << "split=" << use.dim << " ";
  if (use.input_dim) text << (use.input_head_tail ? "head_tail=" : "input=") << *use.input_dim;
  text << (use.brings_weight ? " brings" : "") << "]";
  return text.str();
}

struct Step {
  size_t op;
  std::vector<size_t> operands;  ///< positions among the leaves and earlier results
  Numbers numbers;
};

struct Program {
  uint64_t seed = 0;
  std::vector<Leaf> leaves;
  std::vector<Step> steps;

  std::string to_string() const {
    std::ostringstream text;
    text << "seed " << seed << "\n";
    for (size_t i = 0; i < leaves.size(); ++i) {
      text << "  v" << i << " = leaf " << leaves[i].whole.sizes();
      for (const auto& placement : leaves[i].placements) text << " " << placement.to_string();
      if (leaves[i].uses) {
        for (const auto& use : leaves[i].uses->product) text << random_program::to_string(use);
        text << (leaves[i].uses->gathers_again ? " gathers again" : "");
      }
      text << "\n";
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      text << "  v" << leaves.size() + i << " = " << operators()[steps[i].op].name << "(";
      for (const size_t operand : steps[i].operands) text << " v" << operand;
      text << " ) " << c10::IntArrayRef(steps[i].numbers) << "\n";
    }
    return text.str();
  }
};

inline Tensor run_step(const Step& step, const Tensors& values) {
  Tensors operands;
  for (const size_t operand : step.operands) operands.push_back(values[operand]);
  return operators()[step.op].run(operands, step.numbers);
}

/// Leaves (as given, in order) and all results; then backward from a weighted sum of the results.
inline Tensors run(const Program& program, Tensors values) {
  for (const Step& step : program.steps) values.push_back(run_step(step, values));
  Tensor total;
  for (size_t i = program.leaves.size(); i < values.size(); ++i) {
    if (!values[i].requires_grad()) continue;
    const Tensor part = (values[i] * constants(values[i].sizes(), double(i))).sum();
    total = total.defined() ? total + part : part;
  }
  if (total.defined()) total.backward();
  return values;
}

class Generator {
 public:
  Generator(uint64_t seed, size_t axes) : random_(seed), axes_(axes) { program_.seed = seed; }

  Program make() {
    const size_t leaves = 2 + below(2);
    const Numbers common = sizes();
    for (size_t i = 0; i < leaves; ++i) {
      // Half of the leaves fit each other.
      Tensor whole = constants(i > 0 && below(2) == 0 ? common : sizes(), double(below(90)));
      Leaf leaf{whole, placements(whole)};
      if (whole.dim() == 2 && !leaf.placements.empty() && below(2) == 0) {
        leaf.uses = uses();
        planned_ = i;
      }
      program_.leaves.push_back(std::move(leaf));
      values_.push_back(whole);
    }
    const size_t steps = 1 + below(7);
    for (int tries = 0; tries < 60 && program_.steps.size() < steps; ++tries) try_step();
    return program_;
  }

 private:
  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % bound); }

  Numbers sizes() {
    constexpr int64_t kSizes[] = {1, 2, 3, 4, 5, 6, 7, 8};
    Numbers sizes(1 + below(3));
    for (int64_t& size : sizes) size = below(25) == 0 ? 0 : kSizes[below(8)];
    return sizes;
  }

  std::vector<oslo::Placement> placements(const Tensor& whole) {
    std::vector<oslo::Placement> chosen;
    if (below(6) == 0) return chosen;
    std::set<int64_t> taken;
    for (size_t axis = 0; axis < axes_; ++axis) {
      const int64_t dim = below(whole.dim()), size = whole.size(dim);
      if ((taken.count(dim) > 0 && below(2) == 0) || below(4) == 0) {
        chosen.push_back(oslo::Placement::replicate());
        continue;
      }
      if (taken.count(dim) > 0 ||
          below(4) == 0) {  // of what the first axis left, parts may be uneven
        chosen.push_back(below(3) == 0 ? oslo::Placement::head_tail(dim)
                                       : oslo::Placement::shard(dim));
        taken.insert(dim);
        continue;
      }
      taken.insert(dim);
      const int64_t blocks = size % 2 == 0 && below(3) == 0 ? 2 : 1;
      const int64_t unit = size / blocks % 2 == 0 && below(3) == 0 ? 2 : 1;
      chosen.push_back(oslo::Placement::shard(dim, blocks, unit));
    }
    return chosen;
  }

  oslo::AxisUse use() {
    using Result = oslo::AxisUse::Result;
    constexpr Result kResults[] = {Result::reduce, Result::scatter, Result::split};
    oslo::AxisUse use;
    use.result = kResults[below(3)];
    use.dim = below(4) - 2;
    if (below(3) == 0) {
      use.input_dim = below(4) - 2;
      use.input_head_tail = below(2) == 0;
    }
    use.brings_weight = below(3) == 0;
    return use;
  }

  std::shared_ptr<const oslo::WeightUses> uses() {
    auto uses = std::make_shared<oslo::WeightUses>();
    uses->planned = "a leaf of this program";
    for (size_t axis = 0; axis < axes_; ++axis) uses->product.push_back(use());
    uses->gathers_again = below(2) == 0;
    return uses;
  }

  void try_step() {
    Step step;
    step.op = static_cast<size_t>(below(static_cast<int64_t>(operators().size())));
    if (planned_ && below(3) == 0) {
      step.op = operator_called(kProducts[below(std::size(kProducts))]);
      step.operands = {static_cast<size_t>(below(static_cast<int64_t>(values_.size()))), *planned_};
    }
    while (step.operands.size() < operators()[step.op].operands) {
      step.operands.push_back(static_cast<size_t>(below(static_cast<int64_t>(values_.size()))));
    }
    for (int i = 0; i < 4; ++i) step.numbers.push_back(below(1000));
    Tensor result;
    try {
      const torch::NoGradGuard no_grad;
      result = run_step(step, values_);
    } catch (const std::exception&) {
      return;  // the shapes do not fit
    }
    if (result.numel() > 3000 || result.dim() > 5) return;
    if (result.numel() > 0 && !(result.abs().max().item<double>() < 1e3)) return;
    values_.push_back(result);
    program_.steps.push_back(std::move(step));
  }

  /// What plans of weights speak of.
  static constexpr const char* kProducts[] = {"matmul", "matmul with t", "linear", "einsum"};

  static size_t operator_called(const std::string& name) {
    size_t found = 0;
    while (operators().at(found).name != name) ++found;
    return found;
  }

  std::mt19937_64 random_;
  size_t axes_;
  std::optional<size_t> planned_;  ///< a leaf that a plan speaks of
  Program program_;
  Tensors values_;
};

}  // namespace random_program
