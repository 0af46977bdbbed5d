#include "parallelizers/plan/dry/step_forecast.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "parallelizers/memory/offload/foreseen_moves.h"

namespace oslo {
namespace {

using Memory = MemoryTape::Memory;
using Call = MemoryTape::Call;
constexpr int kNone = MemoryTape::kNone;

/// Operators, one after the other, of the same layers, or of none.
struct Stretch {
  int segment = kNone;
  int begin = 0, end = 0;  ///< operators
  bool again = false;      ///< whether it is computed again
  int64_t let_go = 0;      ///< what it saves, and lets go at its end
  int64_t working = 0;     ///< what running it again needs beside that
  bool has_layers() const { return segment != kNone; }
};

/// Until when a value that the forward makes is held.
struct Fate {
  int forward_end = 0;   ///< after this operator of the forward
  int backward_end = 0;  ///< after the backward of this one
  bool again = false;    ///< in between nobody holds it: its stretch makes it again
};

class Forecast {
 public:
  Forecast(const MemoryTape& tape, const std::vector<std::string>& names, const StepBase& base,
           int stage, const OffloadOptions* offload)
      : calls_(tape.calls()),
        memories_(tape.memories()),
        names_(names),
        base_(base),
        offload_(offload) {
    forget_others(stage);
    made_.resize(calls_.size());
    ends_.resize(calls_.size());
    released_.resize(calls_.size());
    back_.resize(calls_.size());
    find_stretches();
    find_readers();
    for (size_t i = 0; i < memories_.size(); ++i) decide(static_cast<int>(i));
    for (Stretch& stretch : stretches_) measure(stretch);
    if (offload_ != nullptr) move_to_host();
  }

  StepProfile step() {
    begin("the forward");
    for (const Stretch& stretch : stretches_) forward(stretch);
    profile_.kept = held_;
    begin("the backward");
    gradients_outside();
    start_from_loss();
    size_t run = profile_.runs.size();
    for (size_t i = stretches_.size(); i-- > 0;) {
      if (stretches_[i].has_layers()) enter(stretches_[i]);
      if (stretches_[i].again) run_again(stretches_[i], profile_.runs[--run]);
      for (int op = stretches_[i].end; op-- > stretches_[i].begin;) backward(op);
    }
    for (const int64_t never_met : gradients_to_come_) held_ += never_met;
    begin("the optimizer's step");
    hold(base_.temporaries);
    return std::move(profile_);
  }

 private:
  /// What this stage neither makes nor takes is not there.
  void forget_others(int stage) {
    std::vector<bool> here(memories_.size());
    for (const Call& call : calls_) {
      if (!call.stages.empty() && !call.stages.contains(stage)) continue;
      for (const int number : call.arguments) here[number] = true;
      for (const int number : call.results) here[number] = true;
    }
    for (size_t i = 0; i < here.size(); ++i) {
      if (!here[i]) memories_[i].bytes = 0;
    }
  }

  void find_stretches() {
    for (size_t i = 0; i < calls_.size(); ++i) {
      const int op = static_cast<int>(i);
      if (stretches_.empty() || stretches_.back().segment != calls_[i].segment) {
        const int segment = calls_[i].segment;
        stretches_.push_back({segment, op, op, segment != kNone && offload_ == nullptr});
      }
      stretches_.back().end = op + 1;
      stretch_of_.push_back(static_cast<int>(stretches_.size()) - 1);
    }
  }

  /// The first stretch that is computed again and begins with what another one made.
  void find_readers() {
    reader_.assign(memories_.size(), kNone);
    for (size_t i = 0; i < calls_.size(); ++i) {
      const int in = stretch_of_[i];
      if (!stretches_[in].again) continue;
      for (const int number : calls_[i].arguments) {
        const int made = memories_[number].made;
        if (made == kNone || stretch_of_[made] == in || reader_[number] != kNone) continue;
        reader_[number] = stretches_[in].begin;
      }
    }
  }

  void decide(int number) {
    const Memory& memory = memories_[number];
    fates_.emplace_back();
    const int last = static_cast<int>(calls_.size()) - 1;
    if (memory.made == kNone || memory.made > last) return;
    Fate& fate = fates_.back();
    made_[memory.made].push_back(number);
    const int in = stretch_of_[memory.made];
    std::vector<int> needed = memory.savers;
    const bool own = std::all_of(needed.begin(), needed.end(),
                                 [&](int saver) { return stretch_of_[saver] == in; });
    if (reader_[number] != kNone) needed.push_back(reader_[number]);
    fate.backward_end = kNone;
    if (needed.empty()) {
      // What did not die is the program's: it holds what the model returned.
      fate.forward_end = memory.died == kNone ? last + 1 : std::max(memory.died - 1, memory.made);
    } else {
      fate.backward_end = *std::min_element(needed.begin(), needed.end());
      fate.again = own && reader_[number] == kNone && stretches_[in].again;
      fate.forward_end = fate.again ? stretches_[in].end - 1 : last + 1;
      if (fate.again) stretches_[in].let_go += memory.bytes;
      released_[fate.backward_end].push_back(number);
    }
    if (fate.forward_end <= last) ends_[fate.forward_end].push_back(number);
  }

  /// Its largest operator, without what was saved and what was there before.
  void measure(Stretch& stretch) const {
    for (int op = stretch.begin; op < stretch.end; ++op) {
      int64_t bytes = 0;
      for (const std::vector<int>* numbers : {&calls_[op].arguments, &calls_[op].results}) {
        for (const int number : *numbers) {
          const Memory& memory = memories_[number];
          if (memory.made >= stretch.begin && memory.savers.empty()) bytes += memory.bytes;
        }
      }
      stretch.working = std::max(stretch.working, bytes);
    }
  }

  /// What waits for backward, and is neither the program's nor another layer's when its own ends.
  void move_to_host() {
    std::vector<offload::SavedValue> values;
    std::vector<int> numbers;
    for (size_t i = 0; i < memories_.size(); ++i) {
      const Memory& memory = memories_[i];
      if (memory.made == kNone || memory.savers.empty() || memory.bytes == 0) continue;
      const Stretch& own = stretches_[stretch_of_[memory.made]];
      values.push_back({memory.bytes, memory.savers, std::max(own.end - 1, memory.used)});
      numbers.push_back(static_cast<int>(i));
    }
    const auto end = static_cast<int>(calls_.size());
    const auto moves = offload::foresee_moves(values, end, *offload_);
    for (size_t i = 0; i < moves.size(); ++i) {
      if (!moves[i].moves()) continue;
      ends_[moves[i].leaves].push_back(numbers[i]);
      back_[moves[i].returns].push_back(numbers[i]);
    }
  }

  void forward(const Stretch& stretch) {
    if (stretch.has_layers()) begin("forward of " + names_[stretch.segment]);
    for (int op = stretch.begin; op < stretch.end; ++op) {
      for (const int number : made_[op]) held_ += memories_[number].bytes;
      hold(0);
      if (op + 1 == stretch.end && stretch.again) try_it(stretch);
      for (const int number : ends_[op]) held_ -= memories_[number].bytes;
    }
    if (!stretch.again) return;
    begin("after " + names_[stretch.segment]);
    SegmentRun run;
    run.segment = stretch.segment;
    run.let_go = stretch.let_go;
    run.work = static_cast<double>(stretch.let_go);
    run.ended = profile_.phases.size() - 1;
    profile_.runs.push_back(run);
  }

  /// The first step tries it, when an optimizer has no states yet.
  void try_it(const Stretch& stretch) {
    StepPhase tried{"trying " + names_[stretch.segment], 0, /*once=*/true};
    tried.most = base_.model + held_ + stretch.working;
    profile_.phases.push_back(std::move(tried));
  }

  void enter(const Stretch& stretch) {
    begin("backward of " + names_[stretch.segment]);
    held_ += std::exchange(gradients_to_come_[stretch.segment], 0);
    hold(0);
  }

  void run_again(const Stretch& stretch, SegmentRun& run) {
    run.reran = profile_.phases.size() - 1;
    held_ += stretch.let_go;
    hold(stretch.working);
  }

  /// Those of parameters come with their segment, or at the beginning.
  void gradients_outside() {
    gradients_to_come_ = base_.segment_gradients;
    held_ += base_.gradients -
             std::accumulate(gradients_to_come_.begin(), gradients_to_come_.end(), int64_t{0});
  }

  /// A loss reads the last result, saves as much, and gives it a gradient by way of another.
  void start_from_loss() {
    if (calls_.empty()) return;
    for (const int number : calls_.back().results) {
      const int64_t bytes = memories_[number].bytes;
      if (!give_gradient(number, bytes)) continue;
      if (bytes > kNumber) held_ += bytes;
      hold(bytes);
    }
  }

  bool give_gradient(int number, int64_t bytes) {
    if (!gradients_.emplace(number, bytes).second) return false;
    held_ += bytes;
    return true;
  }

  void backward(int op) {
    const Call& call = calls_[op];
    for (const int number : back_[op]) held_ += memories_[number].bytes;
    hold(0);
    const bool reached = std::any_of(call.results.begin(), call.results.end(),
                                     [&](int number) { return gradients_.contains(number); });
    if (reached && !call.differentiated.empty()) {
      int64_t meanwhile = 0;
      for (const int number : call.differentiated) {
        if (memories_[number].made == kNone) continue;
        const int64_t bytes = memories_[number].bytes;
        give_gradient(number, bytes);
        meanwhile += bytes;
      }
      for (const int number : call.results) meanwhile += memories_[number].bytes;
      hold(meanwhile);
    }
    for (const int number : call.results) {
      if (memories_[number].made != op) continue;
      if (const auto found = gradients_.find(number); found != gradients_.end()) {
        held_ -= found->second;
        gradients_.erase(found);
      }
    }
    for (const int number : released_[op]) held_ -= memories_[number].bytes;
  }

  void begin(std::string name) {
    profile_.phases.push_back({std::move(name), 0});
    hold(0);
  }
  /// So many bytes beside what is held.
  void hold(int64_t more) {
    int64_t& most = profile_.phases.back().most;
    most = std::max(most, base_.model + base_.states + held_ + more);
  }

  static constexpr int64_t kNumber = 16;  ///< bytes of one, at the most

  const std::vector<Call>& calls_;
  std::vector<Memory> memories_;
  const std::vector<std::string>& names_;
  const StepBase base_;
  const OffloadOptions* const offload_;  ///< null: nothing is moved
  std::vector<Stretch> stretches_;
  std::vector<int> stretch_of_;  ///< of operators
  std::vector<int> reader_;      ///< of memories: the operator that the stretch begins with
  std::vector<Fate> fates_;      ///< of memories
  std::vector<std::vector<int>> made_, ends_, released_, back_;  ///< memories, by operators
  std::unordered_map<int, int64_t> gradients_;                   ///< of memories
  std::vector<int64_t> gradients_to_come_;                       ///< of segments' parameters
  StepProfile profile_;
  int64_t held_ = 0;
};

}  // namespace

StepProfile forecast_step(const MemoryTape& tape, const std::vector<std::string>& names,
                          const StepBase& base, int stage, int in_flight,
                          const OffloadOptions* offload) {
  StepProfile profile = Forecast(tape, names, base, stage, offload).step();
  for (StepPhase& phase : profile.phases) phase.most += (in_flight - 1) * profile.kept;
  for (SegmentRun& run : profile.runs) run.let_go *= in_flight;
  profile.kept *= in_flight;
  return profile;
}

}  // namespace oslo
