#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "mpu/grid/mpu.h"
#include "oslo_cpp/engine/batch_share.h"

namespace oslo {

/// What an engine's loader has to know of the ranks, and what it tells them; without its types.
class LoaderPart {
 public:
  /// `divides`: batches are those of all data ranks. Else they are this one's already.
  LoaderPart(const MPU& mpu, int batches_a_step, bool divides, std::shared_ptr<BatchShare> share);

  int batches_a_step() const { return batches_; }
  bool divides() const { return ranks_ > 1; }

  /// An epoch begins. Throws on all ranks unless those that are to have the same batches have the
  /// same first one: `tensors` of it, none where there is no batch. A few words by the world's
  /// store; nothing on one rank.
  void agree_on_first(const std::vector<at::Tensor>& tensors) const;

  /// This rank's rows of a batch: those of tensor_split.
  struct Rows {
    int64_t start = 0, length = 0;
    double weight = 1;  ///< BatchShare::weight
  };
  /// Throws for fewer rows than data ranks.
  Rows of(int64_t rows) const;
  /// The training loop is at a batch that has it.
  void at(const Rows& rows) const { share_->weight = rows.weight; }

  /// An epoch has ended: throws where it had batches and none of them made a step; on rank 0's
  /// standard error it says, once, how many were left over.
  void ended(int64_t given, int64_t left_over);

 private:
  World world_;
  std::vector<std::vector<int>> alike_;  ///< groups of ranks that have the same batches
  int rank_, ranks_;
  int batches_;
  std::shared_ptr<BatchShare> share_;
  bool told_ = false;
};

}  // namespace oslo
