#pragma once

#include <cstdint>
#include <functional>
#include <utility>

namespace oslo {

/// Told while a folder is worked on: how many of how many bytes are done.
using TellProgress = std::function<void(uint64_t done, uint64_t all)>;

/// Adds up what is done.
class FolderProgress {
 public:
  FolderProgress(TellProgress tell, uint64_t all) : tell_(std::move(tell)), all_(all) { add(0); }
  void add(uint64_t bytes) {
    done_ += bytes;
    if (tell_) tell_(done_, all_);
  }

 private:
  TellProgress tell_;
  uint64_t done_ = 0;
  uint64_t all_;
};

}  // namespace oslo
