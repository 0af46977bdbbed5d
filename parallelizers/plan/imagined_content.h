#pragma once

#include <c10/core/StorageImpl.h>

#include <map>
#include <string>
#include <vector>

#include "parallelizers/placement/engine/content_provider.h"

namespace oslo {

/// Content in the planner's runs, where no value has any: all zeros (of a mask: false), and two
/// tensors that are compared differ.
class ImaginedContent final : public ContentProvider {
 public:
  std::vector<c10::IValue> read(const OperatorEntry& op,
                                std::vector<c10::IValue> arguments) override;
  /// Remembers what the tensor held before.
  at::Tensor content_for(const at::Tensor& target, const at::Tensor& shape) override;

  /// The operators that read elements, in order of appearance.
  const std::vector<std::string>& readers() const { return readers_; }
  /// Puts back what ordinary tensors (a cache that is no buffer) held.
  void restore_written();

 private:
  struct Written {
    at::Tensor tensor, bytes, before;
    bool in_graph;
  };
  std::vector<std::string> readers_;
  std::map<const c10::StorageImpl*, Written> written_;
};

}  // namespace oslo
