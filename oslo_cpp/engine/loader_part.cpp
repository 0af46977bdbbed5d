#include "oslo_cpp/engine/loader_part.h"

#include <iostream>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/group/rank_check.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/engine/rank_rows.h"

namespace oslo {

LoaderPart::LoaderPart(const MPU& mpu, int batches_a_step, bool divides,
                       std::shared_ptr<BatchShare> share)
    : world_(mpu.world()),
      rank_(divides ? mpu.get_data_parallel_rank() : 0),
      ranks_(divides ? mpu.get_data_parallel_world_size() : 1),
      batches_(batches_a_step),
      share_(std::move(share)) {
  if (!divides) alike_ = mpu.get_model_parallel_groups();
}

void LoaderPart::agree_on_first(const std::vector<at::Tensor>& tensors) const {
  if (world_.size() == 1) return;
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    text += c10::str(tensor.sizes(), " ", tensor.scalar_type(), " with digest ",
                     content_digest(tensor.contiguous()), "\n");
  }
  agree_on_text(world_, "the loader's first batch of an epoch", text,
                "draw its order alike on all ranks: seed them alike in front of each epoch, or "
                "take a sampler that follows from the epoch's number "
                "(torch::data::samplers::DistributedRandomSampler)",
                alike_);
}

LoaderPart::Rows LoaderPart::of(int64_t rows) const {
  if (ranks_ == 1) return {0, rows, 1};
  OSLO_CHECK(rows >= ranks_, "a batch of ", rows, rows == 1 ? " row" : " rows",
             " cannot be divided over ", ranks_,
             " data ranks; make batches larger, or leave a small last one out "
             "(torch::data::DataLoaderOptions().drop_last(true))");
  const RankRows own(rows, rank_, ranks_);
  const double weight =
      rows % ranks_ == 0 ? 1 : static_cast<double>(own.length * ranks_) / static_cast<double>(rows);
  return {own.start, own.length, weight};
}

void LoaderPart::ended(int64_t given, int64_t left_over) {
  if (left_over == 0) return;
  OSLO_CHECK(given > 0, "an epoch of the loader has ", left_over,
             left_over == 1 ? " batch" : " batches", ", and 'gradient_accumulation' takes ",
             batches_, " a step; set it to at most ", left_over);
  if (!std::exchange(told_, true) && world_.rank() == 0) {
    std::cerr << "oslo: of an epoch's " << given + left_over << " batches the last "
              << (left_over == 1 ? "one is" : c10::str(left_over, " are"))
              << " left out: 'gradient_accumulation' takes " << batches_ << " a step" << std::endl;
  }
}

}  // namespace oslo
