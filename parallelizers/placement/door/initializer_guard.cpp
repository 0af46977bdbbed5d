#include "parallelizers/placement/door/initializer_guard.h"

#include <c10/core/GradMode.h>
#include <c10/util/Backtrace.h>

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

constexpr std::array<std::string_view, 9> kReadSizes = {"nn::init::xavier_uniform_(",
                                                        "nn::init::xavier_normal_(",
                                                        "nn::init::kaiming_uniform_(",
                                                        "nn::init::kaiming_normal_(",
                                                        "nn::init::orthogonal_(",
                                                        "nn::init::sparse_(",
                                                        "nn::init::dirac_(",
                                                        "nn::init::eye_(",
                                                        "nn::BilinearImpl::reset_parameters("};

/// From the innermost call of an initializer outwards.
constexpr size_t kFrames = 40;

bool cut_beyond_rows(const Layout& layout) {
  for (int axis = 0; axis < layout.axes(); ++axis) {
    if (layout[axis].dim > 0) return true;
  }
  return false;
}

/// Whether that is a place in LibTorch's `index_put_` by slices. Looking a place's function up
/// takes milliseconds, and DistributedDataParallel writes every gradient from the same few: each
/// thread remembers those that it has met.
bool in_index_put(void* place) {
  static thread_local std::unordered_map<void*, bool> met;
  const auto [known, added] = met.emplace(place, false);
  if (!added) return known->second;
  constexpr std::string_view kIndexPut =
      "_ZN2at6Tensor10index_put_EN3c108ArrayRefINS_8indexing11TensorIndexE";
  Dl_info found{};
  known->second = dladdr(place, &found) != 0 && found.dli_sname != nullptr &&
                  std::string_view(found.dli_sname).starts_with(kIndexPut);
  return known->second;
}

}  // namespace

void refuse_initializers_of_parts(const at::Tensor& target) {
  if (placed_impl(target) != nullptr) return;  // its sizes are global
  const Mark* mark = mark_of(target);
  if (mark == nullptr || mark->layout->whole()) return;
  if (c10::GradMode::is_enabled()) return;  // they all fill under torch::NoGradGuard
  const std::string calls = c10::get_backtrace(0, kFrames);
  const auto in = [&](std::string_view function) {
    return calls.find(function) != std::string::npos;
  };
  const auto found = std::find_if(kReadSizes.begin(), kReadSizes.end(), in);
  if (found == kReadSizes.end()) return;
  // Their layers' own resets compute from the fan-in alone.
  const bool fan_in = in("nn::LinearImpl::reset_parameters(") || in("nn::ConvNdImpl<");
  if (fan_in && !cut_beyond_rows(*mark->layout)) return;
  const std::string function(found->substr(0, found->size() - 1));
  const auto sizes = mark->layout->global_sizes(target.sizes());
  fail("torch::", function, " of parallel parameter ", mark->name,
       " computes from its sizes, and read those of this rank's part, ", target.sizes(), " of ",
       c10::IntArrayRef(sizes),
       "; initialize the weights before oslo::initialize, or fill a whole tensor on every rank and "
       "let the parameter take its part: parameter.copy_(whole) under torch::NoGradGuard");
}

void refuse_index_put_of_parts(const at::Tensor& target) {
  const Mark* mark = placed_impl(target) != nullptr ? nullptr : mark_of(target);
  if (mark == nullptr || mark->layout->whole()) return;
  std::array<void*, kFrames> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 0; i < count; ++i) {
    if (!in_index_put(frames[i])) continue;
    fail("index_put_ of parallel parameter ", mark->name,
         " by slices or \"...\": LibTorch has compared them with the sizes of this rank's part, ",
         target.sizes(), " of ", c10::IntArrayRef(mark->layout->global_sizes(target.sizes())),
         ", and would write all of it; write through the view, whose sizes are the whole's: "
         "parameter.slice(0, 0, k).copy_(values)");
  }
}

void refuse_joined_gradients(const at::Tensor& parameter) {
  const Mark* mark = placed_impl(parameter) != nullptr ? nullptr : mark_of(parameter);
  if (mark == nullptr || mark->layout->here() || c10::GradMode::is_enabled()) return;
  if (mark->layout->context()->in_step() || mark->layout->context()->imagined() != nullptr) return;
  const std::string calls = c10::get_backtrace(0, kFrames);
  if (calls.find("torch::optim::LBFGS::") == std::string::npos) return;
  fail("torch::optim::LBFGS joins the gradients of all parameters into one tensor, and this rank ",
       "has none of ", mark->name, ", which pipeline ", mark->layout->stages().to_string(),
       " holds: choose an optimizer that works parameter by parameter (Adam, AdamW, SGD, RMSprop, "
       "Adagrad)");
}

bool resets_padded_table(const at::Tensor& target) {
  const Mark* mark = placed_impl(target) != nullptr ? nullptr : mark_of(target);
  if (mark == nullptr || mark->padding_row < 0) return false;
  const std::string calls = c10::get_backtrace(0, kFrames);
  return calls.find("nn::EmbeddingImpl::reset_parameters(") != std::string::npos ||
         calls.find("nn::EmbeddingBagImpl::reset_parameters(") != std::string::npos;
}

}  // namespace oslo
