#include <algorithm>
#include <limits>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/collective/collective.h"

namespace oslo::shared_memory {
namespace {

/// What the reductions share: the kernel, and calling it on everyone's part.
class Reduction : public Collective {
 protected:
  Reduction(Kind kind, c10::ScalarType type, c10d::ReduceOp::RedOpType op, int size)
      : Collective(kind),
        kernel_(reduce_kernel(type, op)),
        unit_(c10::elementSize(type) / (c10::isComplexType(type) ? 2 : 1)),
        inputs_(size) {
    heading_.type = static_cast<int8_t>(type);
    heading_.reduction = static_cast<int8_t>(op);
  }

  /// Reduces `bytes` bytes at `offset` of everyone's slot to `out`; mine are at `mine`.
  void reduce_slots(Member& member, const std::byte* mine, size_t offset, size_t bytes,
                    std::byte* out) {
    if (bytes == 0) return;
    for (int rank = 0; rank < member.size(); ++rank) {
      inputs_[rank] = rank == member.rank() ? mine : member.slot(rank) + offset;
    }
    kernel_(out, inputs_.data(), member.size(), bytes / unit_);
  }

 private:
  ReduceKernel kernel_;
  size_t unit_;
  std::vector<const void*> inputs_;
};

/// Every rank reduces everything: one wait, for what is small.
class DirectAllReduce final : public Reduction {
 public:
  DirectAllReduce(const Member& member, Buffer tensor, c10d::ReduceOp::RedOpType op)
      : Reduction(Kind::all_reduce, tensor.type(), op, member.size()), tensor_(std::move(tensor)) {
    heading_.bytes = tensor_.bytes();
    heading_.rounds = rounds_for(tensor_.bytes(), member.chunk());
  }

 private:
  void put(Member& member, uint32_t round) override {
    const Piece piece(tensor_.bytes(), member.chunk(), round);
    if (member.size() > 1) {
      copy_bytes(member.slot(member.rank()), tensor_.data() + piece.begin, piece.length);
    }
  }
  void take(Member& member, uint32_t round) override {
    const Piece piece(tensor_.bytes(), member.chunk(), round);
    std::byte* const mine = tensor_.data() + piece.begin;
    reduce_slots(member, mine, 0, piece.length, mine);
  }

  Buffer tensor_;
};

/// Rank `rank`'s part of chunk `chunk` of `bytes` bytes, from the chunk's begin: whole lines.
Piece share_of(size_t bytes, size_t step, uint32_t chunk, int ranks, int rank) {
  const size_t length = Piece(bytes, step, chunk).length;
  const size_t lines = (length + kLine - 1) / kLine;
  const size_t share = (lines + ranks - 1) / ranks * kLine;
  return Piece(length, share, static_cast<uint32_t>(rank));
}

/// Each rank reduces its part of a chunk, and collects the others' parts one round later, while the
/// next chunk is being reduced. The slots hold a chunk's inputs and then, in place, its results.
class SharedAllReduce final : public Reduction {
 public:
  SharedAllReduce(const Member& member, Buffer tensor, c10d::ReduceOp::RedOpType op, size_t step)
      : Reduction(Kind::all_reduce, tensor.type(), op, member.size()),
        tensor_(std::move(tensor)),
        step_(step),
        chunks_(rounds_for(tensor_.bytes(), step_)) {
    heading_.bytes = tensor_.bytes();
    heading_.rounds = chunks_ + 1;
  }

 private:
  Piece part(const Member& member, uint32_t chunk, int rank) const {
    return share_of(tensor_.bytes(), step_, chunk, member.size(), rank);
  }

  void put(Member& member, uint32_t round) override {
    if (round >= chunks_) return;
    const size_t length = Piece(tensor_.bytes(), step_, round).length;
    const Piece own = part(member, round, member.rank());
    std::byte* const slot = member.slot(member.rank());
    const std::byte* const from = tensor_.data() + step_ * round;
    const size_t own_end = own.begin + own.length;
    copy_bytes(slot, from, own.begin);
    copy_bytes(slot + own_end, from + own_end, length - own_end);
  }

  void take(Member& member, uint32_t round) override {
    if (round < chunks_) {
      const Piece own = part(member, round, member.rank());
      std::byte* const mine = tensor_.data() + step_ * round + own.begin;
      reduce_slots(member, mine, own.begin, own.length, mine);
      copy_bytes(member.slot(member.rank()) + own.begin, mine, own.length);
    }
    if (round == 0) return;
    for (int rank = 0; rank < member.size(); ++rank) {
      if (rank == member.rank()) continue;
      const Piece theirs = part(member, round - 1, rank);
      copy_bytes(tensor_.data() + step_ * (round - 1) + theirs.begin,
                 member.previous_slot(rank) + theirs.begin, theirs.length);
    }
  }

  Buffer tensor_;
  size_t step_;
  uint32_t chunks_;
};

class Reduce final : public Reduction {
 public:
  Reduce(const Member& member, Buffer tensor, c10d::ReduceOp::RedOpType op, int root)
      : Reduction(Kind::reduce, tensor.type(), op, member.size()), tensor_(std::move(tensor)) {
    heading_.bytes = tensor_.bytes();
    heading_.root = root;
    heading_.rounds = rounds_for(tensor_.bytes(), member.chunk());
  }

 private:
  bool is_root(const Member& member) const { return member.rank() == heading_.root; }

  void put(Member& member, uint32_t round) override {
    const Piece piece(tensor_.bytes(), member.chunk(), round);
    if (is_root(member)) return;
    copy_bytes(member.slot(member.rank()), tensor_.data() + piece.begin, piece.length);
  }
  void take(Member& member, uint32_t round) override {
    if (!is_root(member)) return;
    const Piece piece(tensor_.bytes(), member.chunk(), round);
    std::byte* const mine = tensor_.data() + piece.begin;
    reduce_slots(member, mine, 0, piece.length, mine);
  }

  Buffer tensor_;
};

class ReduceScatter final : public Reduction {
 public:
  ReduceScatter(const Member& member, Buffers inputs, Buffer output, c10d::ReduceOp::RedOpType op)
      : Reduction(Kind::reduce_scatter, output.type(), op, member.size()),
        inputs_(std::move(inputs)),
        output_(std::move(output)),
        step_(member.chunk() / member.size() / kLine * kLine) {
    size_t longest = 0;
    for (const Buffer& input : inputs_) {
      heading_.bytes += input.bytes();
      heading_.detail = heading_.detail * 0x9e3779b97f4a7c15u + input.bytes() + 1;
      longest = std::max(longest, input.bytes());
    }
    heading_.rounds = rounds_for(longest, step_);
  }

 private:
  void put(Member& member, uint32_t round) override {
    for (int rank = 0; rank < member.size(); ++rank) {
      if (rank == member.rank()) continue;
      const Piece piece(inputs_[rank].bytes(), step_, round);
      copy_bytes(member.slot(member.rank()) + rank * step_, inputs_[rank].data() + piece.begin,
                 piece.length);
    }
  }
  void take(Member& member, uint32_t round) override {
    const Piece piece(output_.bytes(), step_, round);
    reduce_slots(member, inputs_[member.rank()].data() + piece.begin, member.rank() * step_,
                 piece.length, output_.data() + piece.begin);
  }

  Buffers inputs_;
  Buffer output_;
  size_t step_;
};

}  // namespace

size_t direct_limit(int ranks) {
  // Two ranks read as much either way; beyond that each saves reading what others add up.
  constexpr size_t kRead = 128 * 1024;
  return ranks <= 2 ? std::numeric_limits<size_t>::max() : kRead / ranks;
}

size_t all_reduce_reads(int ranks, int rank, size_t bytes, size_t chunk) {
  if (bytes <= direct_limit(ranks)) return (ranks - 1) * bytes;
  size_t read = 0;
  for (uint32_t i = 0; i < rounds_for(bytes, chunk); ++i) {
    // Of what is mine, everyone's; of the rest, the sums.
    read +=
        Piece(bytes, chunk, i).length + (ranks - 2) * share_of(bytes, chunk, i, ranks, rank).length;
  }
  return read;
}

std::unique_ptr<Collective> make_all_reduce(const Member& member, Buffer tensor,
                                            c10d::ReduceOp::RedOpType op) {
  const size_t bytes = tensor.bytes();
  if (bytes <= direct_limit(member.size())) {
    return std::make_unique<DirectAllReduce>(member, std::move(tensor), op);
  }
  return std::make_unique<SharedAllReduce>(member, std::move(tensor), op, member.chunk());
}

std::unique_ptr<Collective> make_reduce(const Member& member, Buffer tensor,
                                        c10d::ReduceOp::RedOpType op, int root) {
  return std::make_unique<Reduce>(member, std::move(tensor), op, root);
}

std::unique_ptr<Collective> make_reduce_scatter(const Member& member, Buffers inputs, Buffer output,
                                                c10d::ReduceOp::RedOpType op) {
  return std::make_unique<ReduceScatter>(member, std::move(inputs), std::move(output), op);
}

}  // namespace oslo::shared_memory
