#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "mpu/transport/shared_memory/collective/buffer.h"
#include "mpu/transport/shared_memory/collective/member.h"
#include "mpu/transport/shared_memory/collective/reduce_kernels.h"

namespace oslo::shared_memory {

/// One collective operation on one rank, as what it puts into its slot and takes from the others'
/// in each round.
class Collective {
 public:
  explicit Collective(Kind kind) { heading_.kind = kind; }
  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  const Heading& heading() const { return heading_; }
  void set_sequence(uint64_t sequence) { heading_.sequence = sequence; }

  /// Whether one round does it on every rank. Then, once it has begun, no rank waits for this one
  /// any more.
  bool quick() const { return same_rounds_ && heading_.rounds == 1; }

  /// `buffer` will have been written when this is done.
  void writes(const Buffer& buffer) {
    if (buffer.is_copy()) written_.push_back(buffer);
  }

  /// Puts in what the first round needs; never waits.
  void begin(Member& member, std::chrono::milliseconds timeout);
  /// Does the rest.
  void finish(Member& member);

 protected:
  virtual void put(Member& member, uint32_t round) = 0;
  virtual void take(Member& member, uint32_t round) = 0;
  /// Whether `theirs` belongs to the same operation, as far as this one can see.
  virtual bool agrees(const Heading& theirs, int /*rank*/) const { return same(theirs, true); }
  bool same(const Heading& theirs, bool bytes_too) const;

  Heading heading_;
  bool same_rounds_ = true;  ///< every rank knows how many there will be

 private:
  std::vector<Buffer> written_;
};

using Buffers = std::vector<Buffer>;

/// Reduces in place. `type` and `op` as for reduce_kernel().
std::unique_ptr<Collective> make_all_reduce(const Member& member, Buffer tensor,
                                            c10d::ReduceOp::RedOpType op);
/// Reduces in place on `root`; elsewhere the tensor stays.
std::unique_ptr<Collective> make_reduce(const Member& member, Buffer tensor,
                                        c10d::ReduceOp::RedOpType op, int root);
/// `inputs[r]` is what this rank gives to rank r's `output`.
std::unique_ptr<Collective> make_reduce_scatter(const Member& member, Buffers inputs, Buffer output,
                                                c10d::ReduceOp::RedOpType op);
/// `outputs[r]` becomes rank r's `input`; sizes may differ.
std::unique_ptr<Collective> make_all_gather(const Member& member, Buffer input, Buffers outputs);
/// The same on `root` alone; `outputs` is empty elsewhere.
std::unique_ptr<Collective> make_gather(const Member& member, Buffer input, Buffers outputs,
                                        int root);
/// `output` becomes root's `inputs[rank]`; `inputs` is empty elsewhere.
std::unique_ptr<Collective> make_scatter(const Member& member, Buffers inputs, Buffer output,
                                         int root);
std::unique_ptr<Collective> make_broadcast(const Member& member, Buffer tensor, int root);
/// `outputs[r]` becomes rank r's `inputs[rank]`. `even`: all of them on all ranks have one size.
std::unique_ptr<Collective> make_all_to_all(const Member& member, Buffers inputs, Buffers outputs,
                                            bool even);
std::unique_ptr<Collective> make_barrier();

// --- for those that implement them ---

/// The part of `bytes` bytes that round `round` moves, when each moves `step`.
struct Piece {
  size_t begin, length;
  Piece(size_t bytes, size_t step, uint32_t round)
      : begin(std::min(bytes, step * round)), length(std::min(step, bytes - begin)) {}
};

/// Up to how many bytes an all-reduce is faster when every rank reduces everything.
size_t direct_limit(int ranks);

/// How many bytes of others' slots rank `rank` of `ranks` reads in an all-reduce of `bytes`.
size_t all_reduce_reads(int ranks, int rank, size_t bytes, size_t chunk);

uint32_t rounds_for(size_t bytes, size_t step);
void copy_bytes(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace oslo::shared_memory
