#include <algorithm>
#include <cstring>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/collective/collective.h"

namespace oslo::shared_memory {
namespace {

/// All-gather, and gather when there is a root: each rank's slot carries what it has.
class Gather final : public Collective {
 public:
  Gather(const Member& member, Buffer input, Buffers outputs, int root)
      : Collective(root < 0 ? Kind::all_gather : Kind::gather),
        input_(std::move(input)),
        outputs_(std::move(outputs)) {
    heading_.type = static_cast<int8_t>(input_.type());
    heading_.root = root;
    heading_.bytes = input_.bytes();
    same_rounds_ = root < 0;
    size_t longest = input_.bytes();
    for (const Buffer& output : outputs_) longest = std::max(longest, output.bytes());
    heading_.rounds = rounds_for(longest, member.chunk());
  }

 private:
  bool agrees(const Heading& theirs, int rank) const override {
    return same(theirs, false) && (outputs_.empty() || outputs_[rank].bytes() == theirs.bytes);
  }
  void put(Member& member, uint32_t round) override {
    if (heading_.root == member.rank() || member.size() == 1) return;
    const Piece piece(input_.bytes(), member.chunk(), round);
    copy_bytes(member.slot(member.rank()), input_.data() + piece.begin, piece.length);
  }
  void take(Member& member, uint32_t round) override {
    if (outputs_.empty()) return;
    for (int rank = 0; rank < member.size(); ++rank) {
      const Piece piece(outputs_[rank].bytes(), member.chunk(), round);
      const std::byte* from =
          rank == member.rank() ? input_.data() + piece.begin : member.slot(rank);
      copy_bytes(outputs_[rank].data() + piece.begin, from, piece.length);
    }
  }

  Buffer input_;
  Buffers outputs_;
};

class Broadcast final : public Collective {
 public:
  Broadcast(const Member& member, Buffer tensor, int root)
      : Collective(Kind::broadcast), tensor_(std::move(tensor)) {
    heading_.type = static_cast<int8_t>(tensor_.type());
    heading_.root = root;
    heading_.bytes = tensor_.bytes();
    heading_.rounds = rounds_for(tensor_.bytes(), member.chunk());
  }

 private:
  void put(Member& member, uint32_t round) override {
    if (heading_.root != member.rank()) return;
    const Piece piece(tensor_.bytes(), member.chunk(), round);
    copy_bytes(member.slot(member.rank()), tensor_.data() + piece.begin, piece.length);
  }
  void take(Member& member, uint32_t round) override {
    if (heading_.root == member.rank()) return;
    const Piece piece(tensor_.bytes(), member.chunk(), round);
    copy_bytes(tensor_.data() + piece.begin, member.slot(heading_.root), piece.length);
  }

  Buffer tensor_;
};

/// All-to-all, and scatter when there is a root: a slot has a piece for each rank, which begins
/// with the size of all that goes to it, because only the two of them know it.
class Exchange final : public Collective {
 public:
  Exchange(const Member& member, Buffers inputs, Buffers outputs, int root, bool even)
      : Collective(root < 0 ? Kind::all_to_all : Kind::scatter),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        stride_(member.chunk() / member.size() / kLine * kLine),
        step_(stride_ - kLine) {
    heading_.root = root;
    same_rounds_ = even;
    size_t longest = 0;
    for (const Buffers* buffers : {&inputs_, &outputs_}) {
      for (const Buffer& buffer : *buffers) {
        heading_.type = static_cast<int8_t>(buffer.type());
        longest = std::max(longest, buffer.bytes());
      }
    }
    for (const Buffer& input : inputs_) heading_.bytes += input.bytes();
    heading_.rounds = rounds_for(longest, step_);
  }

 private:
  bool agrees(const Heading& theirs, int) const override { return same(theirs, same_rounds_); }

  void put(Member& member, uint32_t round) override {
    for (size_t rank = 0; rank < inputs_.size(); ++rank) {
      if (static_cast<int>(rank) == member.rank()) continue;
      const Piece piece(inputs_[rank].bytes(), step_, round);
      std::byte* const to = member.slot(member.rank()) + rank * stride_;
      const uint64_t bytes = inputs_[rank].bytes();
      std::memcpy(to, &bytes, sizeof(bytes));
      copy_bytes(to + kLine, inputs_[rank].data() + piece.begin, piece.length);
    }
  }

  void take(Member& member, uint32_t round) override {
    for (int rank = 0; rank < member.size(); ++rank) {
      if (heading_.root >= 0 && heading_.root != rank) continue;
      const Buffer& output = outputs_[heading_.root < 0 ? rank : 0];
      const Piece piece(output.bytes(), step_, round);
      const bool own = rank == member.rank();
      const std::byte* from = own ? nullptr : member.slot(rank) + member.rank() * stride_;
      uint64_t bytes = own ? inputs_[rank].bytes() : 0;
      if (!own) std::memcpy(&bytes, from, sizeof(bytes));
      if (bytes != output.bytes()) {
        member.fail_group(c10::str(member.describe(heading_), ": ", member.name_of_rank(rank),
                                   " has ", bytes, " bytes for ",
                                   member.name_of_rank(member.rank()), ", which has room for ",
                                   output.bytes()));
      }
      copy_bytes(output.data() + piece.begin,
                 own ? inputs_[rank].data() + piece.begin : from + kLine, piece.length);
    }
  }

  Buffers inputs_;
  Buffers outputs_;
  size_t stride_;
  size_t step_;
};

class Barrier final : public Collective {
 public:
  Barrier() : Collective(Kind::barrier) {}

 private:
  void put(Member&, uint32_t) override {}
  void take(Member&, uint32_t) override {}
};

}  // namespace

std::unique_ptr<Collective> make_all_gather(const Member& member, Buffer input, Buffers outputs) {
  return std::make_unique<Gather>(member, std::move(input), std::move(outputs), -1);
}

std::unique_ptr<Collective> make_gather(const Member& member, Buffer input, Buffers outputs,
                                        int root) {
  return std::make_unique<Gather>(member, std::move(input), std::move(outputs), root);
}

std::unique_ptr<Collective> make_scatter(const Member& member, Buffers inputs, Buffer output,
                                         int root) {
  Buffers outputs;
  outputs.push_back(std::move(output));
  return std::make_unique<Exchange>(member, std::move(inputs), std::move(outputs), root, false);
}

std::unique_ptr<Collective> make_broadcast(const Member& member, Buffer tensor, int root) {
  return std::make_unique<Broadcast>(member, std::move(tensor), root);
}

std::unique_ptr<Collective> make_all_to_all(const Member& member, Buffers inputs, Buffers outputs,
                                            bool even) {
  return std::make_unique<Exchange>(member, std::move(inputs), std::move(outputs), -1, even);
}

std::unique_ptr<Collective> make_barrier() {
  return std::make_unique<Barrier>();
}

}  // namespace oslo::shared_memory
