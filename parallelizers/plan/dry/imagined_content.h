#pragma once

#include <c10/core/StorageImpl.h>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "parallelizers/placement/elsewhere/content_provider.h"

namespace oslo {

/// Content in the planner's runs, where no value has any: all zeros (of a mask: false), and two
/// tensors that are compared differ. Or all ones (of a mask: true), and they are equal. Where the
/// forward throws on what it read it can be shown the other of the two.
class ImaginedContent final : public ContentProvider {
 public:
  /// A loop that values end may never end on zeros. A forward that reads more often in one run is
  /// taken for one.
  static constexpr int64_t kMostReads = 2000;
  /// The same of ones, which are tried where zeros do not do.
  static constexpr int64_t kMostReadsOfOnes = 256;
  /// At one place, where the other of zeros and ones has not been tried: what a loop looks at.
  static constexpr int kMostTurns = 50;
  /// Each costs a run.
  static constexpr size_t kMostOthers = 8;

  /// From then on what is read is ones, or zeros.
  void imagine_ones(bool ones) { ones_ = ones; }

  /// A run begins: reads are counted from here. `read` throws where they are more than that.
  void begin_run();
  /// The forward called an operator: what it called last tells its reads apart.
  void called(const OperatorEntry& op);
  /// From then on what the run read last, of all that has not been, is the other of zeros and ones:
  /// what TORCH_CHECK looks at. False where nothing is left, or much has been tried.
  bool imagine_other();
  bool imagines_others() const { return !others_.empty(); }
  /// What was shown in the place of what the run read is that no more.
  void forget_others() { others_.clear(); }
  /// Whether loops may take all the turns that reads allow, as nothing is left to try.
  void let_loops_run(bool patient) { patient_ = patient; }
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
  /// A digest of the operators before it, in which the checks of all layers are alike.
  uint64_t place_of_read() const;

  int64_t reads_ = 0;
  bool ones_ = false, patient_ = false;
  std::array<const c10::FunctionSchema*, 4> last_called_{};
  std::vector<uint64_t> places_;   ///< of the run's reads, each where it was read last
  std::map<uint64_t, int> turns_;  ///< reads at each of them
  std::set<uint64_t> others_;      ///< places whose reads are the other of zeros and ones
  std::map<const c10::StorageImpl*, Written> written_;
};

}  // namespace oslo
