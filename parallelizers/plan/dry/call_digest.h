#pragma once

#include <cstdint>
#include <string>

#include "parallelizers/placement/operators/call_observer.h"
#include "parallelizers/plan/dry/imagined_content.h"

namespace oslo {

/// A digest of the calls that a forward makes: operators, global sizes, numbers. It is the same
/// however weights are cut, unless the forward reads the sizes of one, which are local.
class CallDigest final : public CallObserver {
 public:
  void called(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) override;
  void threw(const OperatorEntry& op) override { failed_ = op.name; }

  void clear() {
    digest_ = 0;
    failed_.clear();
  }
  /// From then on `content` is told of the calls as well.
  void tell(ImaginedContent& content) { content_ = &content; }
  uint64_t value() const { return digest_; }
  /// The operator that the forward called last of those that threw; empty: none did.
  const std::string& failed() const { return failed_; }

 private:
  uint64_t digest_ = 0;
  std::string failed_;
  ImaginedContent* content_ = nullptr;
};

}  // namespace oslo
