#pragma once

#include <memory>
#include <string>
#include <utility>

#include "parallelizers/placement/elsewhere/stage_residence.h"
#include "parallelizers/plan/dry/imagined_content.h"

namespace oslo {

/// Values in a run on shapes: no rank has any, and what the forward reads is imagined.
class DryResidence final : public StageResidence {
 public:
  explicit DryResidence(at::Device device)
      : StageResidence(StageRanks::nowhere(), nullptr, device) {}

  ContentProvider* imagined() const override { return content_.get(); }
  ImaginedContent& content() const { return *content_; }

  /// The run is over. What is left of its values says `why` it cannot be used.
  void end(std::string why) { ended_ = std::move(why); }
  std::string ended() const override { return ended_; }

 private:
  const std::unique_ptr<ImaginedContent> content_ = std::make_unique<ImaginedContent>();
  std::string ended_;
};

}  // namespace oslo
