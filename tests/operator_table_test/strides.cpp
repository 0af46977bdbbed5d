// Random numbers are drawn in memory order (randn_like, dropout), and `view` goes by it: what an
// operator makes of cut operands says the strides that one device's result has, and lies so. Every
// operator, its operands in several orders, also where parts have one element or none along a
// dimension.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "tests/support/operator_chapters.h"
#include "tests/support/operator_examples.h"

namespace {

using namespace operator_examples;

/// How operands lie in memory: as they come, by columns, channels last, by columns with a gap
/// behind each.
enum class Memory { rows, columns, channels_last, sliced };
constexpr std::array kMemories{Memory::rows, Memory::columns, Memory::channels_last,
                               Memory::sliced};

/// From the order of dimensions in memory, outermost first, to the tensor's.
std::vector<int64_t> dims_in_memory(int64_t dims, Memory memory) {
  const bool columns = memory == Memory::columns || memory == Memory::sliced;
  std::vector<int64_t> order(dims);
  for (int64_t d = 0; d < dims; ++d) order[d] = columns ? dims - 1 - d : d;
  if (memory == Memory::channels_last && dims > 2) {
    order.erase(order.begin() + 1);
    order.push_back(1);
  }
  return order;
}

/// A copy that lies so; with `mesh` cut along dimension `cut`.
at::Tensor lying(const at::Tensor& tensor, Memory memory, int64_t cut, const oslo::MeshPtr& mesh) {
  const std::vector<int64_t> order = dims_in_memory(tensor.dim(), memory);
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  at::Tensor inside = tensor.detach().permute(order).clone(at::MemoryFormat::Contiguous);
  const int64_t padded = cut == 0 ? 1 : 0;
  const bool gap = memory == Memory::sliced && tensor.dim() > padded;
  if (gap) inside = at::cat({inside, inside.narrow(back[padded], 0, 1)}, back[padded]);
  if (mesh) inside = oslo::distribute(inside, mesh, {oslo::Placement::shard(back[cut])});
  const at::Tensor lies = inside.permute(back);
  return gap ? lies.narrow(padded, 0, tensor.size(padded)) : lies;
}

Tensors operands_of(const Prepared& op, Memory memory, const Cutting& cutting,
                    const oslo::MeshPtr& mesh) {
  Tensors operands;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const bool cut = i == cutting.operand;
    const Memory own = memory == Memory::sliced && !cut ? Memory::columns : memory;
    operands.push_back(lying(op.operands[i], own, cutting.dim, cut ? mesh : nullptr));
  }
  return operands;
}

/// Strides of dimensions of one element mean nothing.
std::string strides_text(const at::Tensor& tensor) {
  std::string text;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    text += (tensor.size(d) > 1 ? std::to_string(tensor.stride(d)) : "-") + " ";
  }
  return text;
}

/// Whether both have their dimensions in one order.
bool same_order(const at::Tensor& one, const at::Tensor& other) {
  for (int64_t a = 0; a < one.dim(); ++a) {
    for (int64_t b = 0; b < one.dim(); ++b) {
      if (one.size(a) < 2 || one.size(b) < 2) continue;
      if ((one.stride(a) < one.stride(b)) != (other.stride(a) < other.stride(b))) return false;
    }
  }
  return true;
}

/// What is gathered of a value with gaps has none, and neither has a result that on one device
/// keeps them or is a view: the order is one device's, and so are drawn numbers; `view` may succeed
/// where one device's needs `reshape`. docs/how-it-works.md says so.
const std::set<std::string>& without_gaps() {
  static const std::set<std::string> names{
      "_unsafe_view", "diagonal_scatter",    "select_scatter",         "slice_scatter",
      "unsafe_chunk", "unsafe_split.Tensor", "unsafe_split_with_sizes"};
  return names;
}

struct Fault {
  std::string text;
  bool gaps_only = false;
};

/// Whether a rank's part lies in the order of the whole's strides.
bool lies_as_it_says(const at::Tensor& result) {
  if (!oslo::is_placed(result)) return true;
  const at::Tensor part = oslo::local_tensor(result);
  for (int64_t a = 0; a < part.dim(); ++a) {
    for (int64_t b = 0; b < part.dim(); ++b) {
      const bool outside = result.stride(a) > result.stride(b) && result.stride(b) > 0;
      if (!outside || part.size(a) < 2 || part.size(b) < 2) continue;
      if (part.stride(a) < part.stride(b)) return false;
    }
  }
  return true;
}

/// What the results' strides are instead of one device's; "" where they are those.
Fault other_strides(const Tensors& expected, const Tensors& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined() || results[i].layout() != at::kStrided) continue;
    if (results[i].numel() == 0) continue;
    if (results[i].sizes() != expected[i].sizes()) continue;  // drawn numbers decide
    if (strides_text(results[i]) != strides_text(expected[i])) {
      return {c10::str("result ", i, " of shape ", results[i].sizes(),
                       oslo::is_placed(results[i]) ? ", placed," : "", " has strides ",
                       strides_text(results[i]), "on one device ", strides_text(expected[i])),
              same_order(results[i], expected[i])};
    }
    if (!lies_as_it_says(results[i])) {
      return {c10::str("result ", i, " of shape ", results[i].sizes(), " and strides ",
                       strides_text(results[i]), "lies otherwise, ",
                       oslo::local_tensor(results[i]).strides())};
    }
  }
  return {};
}

struct StridesCase {
  const Prepared* op;
  Memory memory;
  Cutting cutting;
  Tensors expected;

  std::string text() const {
    return c10::str(op->name, call_of(*op->example), ", memory ", static_cast<int>(memory), ", ",
                    op->operand_names[cutting.operand], " cut on ", cutting.dim);
  }
};

std::vector<StridesCase> strides_cases(const std::vector<Chapter>& chapters) {
  const c10::AutoGradMode no_grad(false);
  std::vector<StridesCase> cases;
  for (const Chapter& chapter : chapters) {
    for (const Measured& one : chapter.measured) {
      if (one.op.example->check == Check::refused) continue;
      for (const Memory memory : kMemories) {
        for (const Cutting& cutting : cuttings_of(one.op)) {
          if (cutting.blocks > 1 || cutting.unit > 1) continue;
          try {
            const Tensors operands = operands_of(one.op, memory, cutting, nullptr);
            cases.push_back({&one.op, memory, cutting, tensors_of(one.op.call(operands))});
          } catch (const std::exception&) {  // insists on another order
          }
        }
      }
    }
  }
  return cases;
}

/// Operators of `without_gaps` that differ in gaps are named in `found`; all else is a failure.
void compare(const std::vector<StridesCase>& cases, int ranks, std::set<std::string>& found) {
  oslo::run_as_threads(
      ranks,
      [&](const oslo::World& world) {
        const c10::AutoGradMode as_outside(false);
        const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(ranks));
        for (const StridesCase& test : cases) {
          Fault fault;
          try {
            const Tensors operands =
                operands_of(*test.op, test.memory, test.cutting, mpu.tensor_mesh());
            fault = other_strides(test.expected, tensors_of(test.op->call(operands)));
          } catch (const std::exception& error) {
            fault = {short_text(error)};
          }
          if (world.rank() != 0 || fault.text.empty()) continue;
          if (fault.gaps_only && without_gaps().count(test.op->name) > 0) {
            found.insert(test.op->name);
          } else {
            ADD_FAILURE() << test.text() << " of " << ranks << ": " << fault.text;
          }
        }
      },
      std::chrono::seconds(60));
}

TEST(OperatorStrides, AreThoseOfOneDevice) {
  const std::vector<Family> all = families();
  const std::vector<Chapter> chapters = prepare(all);
  const std::vector<StridesCase> cases = strides_cases(chapters);
  EXPECT_GT(cases.size(), 3000u);
  std::set<std::string> found;
  for (const int ranks : {2, 8}) compare(cases, ranks, found);
  EXPECT_EQ(found, without_gaps()) << "what does not differ any more is no exception";
}

}  // namespace
