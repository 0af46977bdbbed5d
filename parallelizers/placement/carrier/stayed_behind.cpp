#include "parallelizers/placement/carrier/stayed_behind.h"

#include "mpu/base/error.h"
#include "parallelizers/libtorch/version_bit.h"

namespace oslo {

void check_not_left_behind(const c10::TensorImpl& impl) {
  OSLO_CHECK(!is_left_behind(impl), "a tensor of shape ", impl.sizes(),
             " is used that shares its elements with one that an operator of another pipeline "
             "stage has written since: it has the elements from before. Take the view after the "
             "write, or write to a new tensor (x = x + y in place of x += y)");
}

}  // namespace oslo
