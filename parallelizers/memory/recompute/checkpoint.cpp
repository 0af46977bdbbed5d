#include "parallelizers/memory/recompute/checkpoint.h"

#include <c10/core/GradMode.h>

#include "mpu/base/error.h"
#include "parallelizers/memory/recompute/kept_kinds.h"
#include "parallelizers/memory/recompute/recording_scopes.h"

namespace oslo {

CheckpointOptions& CheckpointOptions::keep(const std::vector<std::string>& kinds) {
  for (const std::string& kind : kinds) recompute::check_kind(kind);
  return keep_if([of_kinds = recompute::OfKinds(kinds)](
                     const std::string& op, c10::ArrayRef<c10::IValue>) { return of_kinds(op); });
}

CheckpointOptions& CheckpointOptions::keep_if(KeepIf keep_if) {
  keep_if_ = std::move(keep_if);
  return *this;
}

CheckpointOptions& CheckpointOptions::keep_at_most(double share) {
  OSLO_CHECK(share > 0 && share <= 1, "keep_at_most(", share,
             "): give the share of bytes that may be kept, above 0 and up to 1");
  keep_at_most_ = share;
  return *this;
}

CheckpointOptions& CheckpointOptions::whole(bool whole) {
  whole_ = whole;
  return *this;
}

namespace recompute {

struct Recording::Scopes : RecordingScopes {
  using RecordingScopes::RecordingScopes;
};

Recording::Recording(const CheckpointOptions& options, std::function<void()> again) {
  if (OperatorTap::current() != nullptr || !c10::GradMode::is_enabled()) return;
  auto segment = std::make_shared<Segment>();
  segment->whole = options.whole();
  segment->keep_at_most = options.keep_at_most();
  segment->again = std::move(again);
  segment->state.emplace();
  scopes_ = std::make_unique<Scopes>(std::move(segment), options.keep_if());
}

void Recording::end() {
  if (!scopes_) return;
  const std::unique_ptr<Scopes> ending = std::move(scopes_);
  ending->recorder.end();
}

Recording::~Recording() = default;

}  // namespace recompute
}  // namespace oslo
