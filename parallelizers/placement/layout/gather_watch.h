#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

namespace oslo {

class Layout;

/// A gather that an operator needs and no plan has it do: what `GatherReport` lists.
struct UnplannedGather {
  const char* operation;      ///< "aten::sort.stable"; a part of what the program called, maybe
  const std::string& reason;  ///< why no rule keeps the value cut
  c10::IntArrayRef sizes;     ///< of the value, global
  const Layout& layout;       ///< how it lies
};

/// Is told of such gathers before they happen, on every rank alike: who gathers follows from
/// layouts and global sizes. Threads may call it together.
class GatherWatch {
 public:
  virtual ~GatherWatch() = default;
  /// Nothing has moved for the operator yet. What this throws, the operator throws.
  virtual void about_to_gather(const UnplannedGather& gather) = 0;
  /// The program's next operator uses this parameter, a cut one.
  virtual void about_to_use(const std::string& /*parameter*/) {}
  /// Whether it throws: who needs to be asked before anything else moves.
  virtual bool refuses() const { return false; }
};

}  // namespace oslo
