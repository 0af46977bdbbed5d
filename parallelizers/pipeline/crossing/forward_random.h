#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace oslo {

/// The random numbers of one micro-batch's forward, where forwards run in parts, one in between the
/// others, and on each rank in another order: a stream of its own, put into the program's
/// generators while a part runs. So each operator draws what it draws where forwards run one after
/// the other, whatever the schedule and the number of ranks, also on tensors that lie on no stage.
///
/// Not for several threads at a time: the generators are the program's.
class ForwardRandom {
 public:
  /// A stream for `micro_batch` of the step that `seed` was drawn for.
  ForwardRandom(std::vector<at::Generator> generators, uint64_t seed, int micro_batch);

  /// A number from the first of the generators, the CPU's, which is the same on all ranks that were
  /// seeded alike.
  static uint64_t draw_seed(const std::vector<at::Generator>& generators);

  /// While it lives the generators are where this stream is; then again where they were.
  class Scope {
   public:
    explicit Scope(ForwardRandom* stream);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ForwardRandom* stream_;
    std::vector<at::Tensor> outer_;
  };

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

}  // namespace oslo
