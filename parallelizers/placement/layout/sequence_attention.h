#pragma once

namespace oslo {

/// How attention is done whose queries lie cut along the sequence, over the axis that cuts them.
enum class SequenceAttention {
  automatic,  ///< by heads where every rank gets one, else by gathering
  gather,     ///< each rank brings all keys and values to its queries
  ulysses,    ///< each rank has all of the sequence for some heads (arXiv 2309.14509)
  ring,       ///< keys and values go round, a rank's part at a time (arXiv 2310.01889)
};

/// Which of a sequence's positions the ranks that hold it together have.
enum class SequenceOrder {
  contiguous,  ///< consecutive ones
  head_tail,   ///< of 2n pieces over n ranks, rank r pieces r and 2n - 1 - r
};

}  // namespace oslo
