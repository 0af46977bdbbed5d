#include "parallelizers/data/sharded/host/write_turns.h"

#include "mpu/base/error.h"

namespace oslo {

// Sequentially consistent: a reader says that it reads, then looks what others have begun; a writer
// says that it begins, then looks who reads. One of the two sees the other.

void WriteTurns::begin_write() {
  if (depth_++ > 0) return;
  HostWord& own = ranks_->own();
  const uint64_t number = own.begun.load() + 1;
  // A rank that has read may be followed by one that is yet to: all come to the first write.
  const bool first = own.reads.load() != 0;
  if (first) own.together.store(number);
  own.begun.store(number);
  own.reads.store(0);
  if (first) ranks_->tell();
  try {
    ranks_->await_others(
        [&](int other) {
          const HostWord& word = ranks_->word(other);
          return word.begun.load() >= number || (!first && word.reads.load() == 0);
        },
        "come to the write of weights that this rank is at (optimizer.step())");
  } catch (...) {
    --depth_;
    throw;
  }
}

void WriteTurns::end_write() noexcept {
  if (--depth_ > 0) return;
  HostWord& own = ranks_->own();
  own.done.store(own.begun.load());
  ranks_->tell();
}

void WriteTurns::read() {
  HostWord& own = ranks_->own();
  if (own.reads.load(std::memory_order_relaxed) != 0) return;
  OSLO_CHECK(depth_ == 0,
             "an operator that writes into weights which ranks share on this host also computes "
             "with whole ones; compute the values first, then write them, or set "
             "\"copies_per_host\" to 0");
  own.reads.store(1);
  const uint64_t number = own.done.load();
  const auto has_written = [&](int other) { return ranks_->word(other).done.load() >= number; };
  try {
    ranks_->await_others(has_written,
                         "write the weights that this rank has written (optimizer.step())");
  } catch (...) {
    own.reads.store(0);
    throw;
  }
  for (int other = 0; other < ranks_->size(); ++other) {
    const uint64_t begun = ranks_->word(other).begun.load();
    // A write that waits for this rank, too, has written nothing.
    if (begun <= number || (begun == number + 1 && ranks_->word(other).together.load() == begun)) {
      continue;
    }
    own.reads.store(0);
    fail_as(ErrorKind::peer, ranks_->name_of(ranks_->rank()),
            " reads weights that ranks share on this host, of which ", ranks_->name_of(other),
            " has written its parts more often: ", begun, " times, not ", number,
            "; let all ranks write the same weights in the same order");
  }
}

}  // namespace oslo
