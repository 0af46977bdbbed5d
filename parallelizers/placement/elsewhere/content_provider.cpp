#include "parallelizers/placement/elsewhere/content_provider.h"

#include <utility>

#include "mpu/base/error.h"

namespace oslo {

std::vector<c10::IValue> read_elsewhere(ContentProvider* provider, const OperatorEntry& op,
                                        std::vector<c10::IValue> arguments) {
  OSLO_CHECK(
      provider != nullptr, op.name,
      " reads elements of a value that another pipeline stage holds: this rank has its shape "
      "only; read it on that stage's ranks (oslo::is_here(t) says whether this is one), or "
      "compute with tensors instead");
  return provider->read(op, std::move(arguments));
}

}  // namespace oslo
