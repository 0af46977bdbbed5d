#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/ScalarType.h>

// Autocast by the program's own hand, as PyTorch's documentation has it.
namespace oslo::test {

/// Autocast of `type` on the CPU for this thread, as Python's `torch.autocast` switches it on and
/// off: the outermost one forgets what was cast.
class UnderAutocast {
 public:
  explicit UnderAutocast(at::ScalarType type, bool enabled = true)
      : type_(at::autocast::get_autocast_dtype(at::kCPU)),
        enabled_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_dtype(at::kCPU, type);
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::increment_nesting();
  }
  ~UnderAutocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, enabled_);
    at::autocast::set_autocast_dtype(at::kCPU, type_);
  }
  UnderAutocast(const UnderAutocast&) = delete;
  UnderAutocast& operator=(const UnderAutocast&) = delete;

 private:
  const at::ScalarType type_;
  const bool enabled_;
};

}  // namespace oslo::test
