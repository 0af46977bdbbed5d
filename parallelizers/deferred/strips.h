#pragma once

#include <map>

#include "parallelizers/deferred/replay.h"

namespace oslo {

/// Computes stretches of a content without the rest of it, in memory of a few strips: what was
/// filled, drawn by uniform_ or normal_, copied (`to`, `clone`), joined (`cat`), and changed
/// element by element, in whole tensors or in parts of them. A number's place in the generator's
/// stream follows from the place of its element, so it is the one that the whole tensor would have
/// there.
class Strips {
 public:
  /// Bytes of a strip; there are up to five at a time.
  static constexpr int64_t kBytes = int64_t{8} << 20;

  /// Whether all that the content is made of can be computed so. Small tensors can: whole.
  bool possible(const Recipe& recipe);
  /// Writes the elements [begin, begin + out.numel()) of the content, in the order of memory, to
  /// `out`, which is contiguous and of the content's type.
  void compute(const Recipe& recipe, int64_t begin, const at::Tensor& out);
  /// For what cannot.
  Replay& replay() { return replay_; }

 private:
  struct Stream {
    at::mt19937 engine;
    uint64_t drawn;
  };

  bool possible_step(const RecordedStep& step);
  bool readable(const RecordedOperand& operand);
  bool elementwise(const RecordedStep& step);

  void make(const RecordedStep& step, int64_t begin, const at::Tensor& out);
  void write(const RecordedStep& step, int64_t logical, const at::Tensor& out);
  void draw(const RecordedStep& step, int64_t logical, const at::Tensor& out);
  void join(const RecordedCall& call, int64_t begin, const at::Tensor& out);
  std::vector<at::Tensor> operands_at(const RecordedStep& step, int64_t logical,
                                      const at::Tensor& out);
  /// Elements of an operand in logical order, converted to the type of `out`.
  void read(const RecordedOperand& operand, int64_t logical, const at::Tensor& out);
  void read_runs(const RecordedOperand& operand, int64_t logical, const at::Tensor& out);
  void random(const RecordedCall& call, uint64_t first, const at::Tensor& out);

  Replay replay_;
  std::map<const RecordedStep*, bool> possible_;
  std::map<const RecordedCall*, Stream> streams_;
};

}  // namespace oslo
