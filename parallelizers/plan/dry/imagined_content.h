#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallelizers/placement/elsewhere/content_provider.h"

namespace oslo {

/// Content in the planner's runs, where no value has any: all zeros (of a mask: false), and two
/// tensors that are compared differ.
class ImaginedContent final : public ContentProvider {
 public:
  /// A loop that values end may never end on zeros. A forward that reads more often in one run is
  /// taken for one.
  static constexpr int64_t kMostReads = 2000;

  /// A run begins: reads are counted from here. `read` throws where they are more than that.
  void begin_run() { reads_ = 0; }
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
  int64_t reads_ = 0;
  std::map<const c10::StorageImpl*, Written> written_;
};

}  // namespace oslo
