#include <algorithm>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/arguments.h"
#include "mpu/transport/shared_memory/backend.h"
#include "mpu/transport/shared_memory/collective/executor.h"

namespace oslo {

using namespace shared_memory;
using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

namespace {

void add_all_reduce(Task& task, const Member& member, const at::Tensor& tensor,
                    const c10d::ReduceOp& op) {
  check_movable(tensor);
  const Buffer buffer = Buffer::output(multiplied(tensor, op, /*in_place=*/true), true);
  task.add(make_all_reduce(member, buffer, op), buffer);
}

void add_reduce_scatter(Task& task, const Member& member, const at::Tensor& output,
                        const at::Tensor& input, const c10d::ReduceOp& op) {
  const Buffer to = Buffer::output(output, false);
  const Buffer from = Buffer::input(multiplied(input, op, /*in_place=*/false));
  task.add(make_reduce_scatter(member, parts_of(from, to, member.size(), "reduce_scatter"), to, op),
           to);
}

}  // namespace

WorkPointer SharedMemoryBackend::allreduce(Tensors& tensors,
                                           const c10d::AllreduceOptions& options) {
  const CountedCall counted(*executor_);
  only(tensors, "all_reduce");
  auto call = task(OpType::ALLREDUCE, tensors, options.timeout, options.asyncOp);
  add_all_reduce(*call, executor_->member(), tensors[0], options.reduceOp);
  return start(std::move(call));
}

int64_t SharedMemoryBackend::all_reduce_brings(int64_t bytes) const {
  return static_cast<int64_t>(
      all_reduce_reads(size_, rank_, static_cast<size_t>(bytes), options_->chunk_bytes));
}

bool SharedMemoryBackend::in_one_round(int64_t bytes) const {
  return static_cast<size_t>(bytes) <= std::min(direct_limit(size_), options_->chunk_bytes);
}

WorkPointer SharedMemoryBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const CountedCall counted(*executor_);
  auto call = task(OpType::ALLREDUCE_COALESCED, tensors, options.timeout, options.asyncOp);
  for (const at::Tensor& tensor : tensors) {
    add_all_reduce(*call, executor_->member(), tensor, options.reduceOp);
  }
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const CountedCall counted(*executor_);
  check_root(options.rootRank, options.rootTensor, size_);
  const auto root = static_cast<int>(options.rootRank);
  check_movable(only(tensors, "reduce"));
  const at::Tensor tensor = multiplied(tensors[0], options.reduceOp, rank_ == root);
  const Buffer buffer = rank_ == root ? Buffer::output(tensor, true) : Buffer::input(tensor);
  auto call = task(OpType::REDUCE, tensors, options.timeout, options.asyncOp);
  call->add(make_reduce(executor_->member(), buffer, options.reduceOp, root), buffer);
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<Tensors>& inputs,
                                                const c10d::ReduceScatterOptions& options) {
  const CountedCall counted(*executor_);
  const at::Tensor& output = only(outputs, "reduce_scatter");
  check_movable(output);
  check_list(only(inputs, "reduce_scatter"), output, size_, "reduce_scatter");
  Buffers parts;
  for (const at::Tensor& input : inputs[0]) {
    parts.push_back(Buffer::input(multiplied(input, options.reduceOp, /*in_place=*/false)));
  }
  const Buffer to = Buffer::output(output, false);
  OSLO_CHECK(parts[rank_].bytes() == to.bytes(), "reduce_scatter: this rank's part has ",
             parts[rank_].bytes(), " bytes, its output ", to.bytes());
  auto call = task(OpType::REDUCE_SCATTER, outputs, options.timeout, options.asyncOp);
  call->add(make_reduce_scatter(executor_->member(), std::move(parts), to, options.reduceOp), to);
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) {
  const CountedCall counted(*executor_);
  auto call = task(OpType::_REDUCE_SCATTER_BASE, {output}, options.timeout, options.asyncOp);
  add_reduce_scatter(*call, executor_->member(), output, input, options.reduceOp);
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const CountedCall counted(*executor_);
  OSLO_CHECK(outputs.size() == inputs.size(), "reduce_scatter_tensor_coalesced got ",
             outputs.size(), " outputs and ", inputs.size(), " inputs");
  auto call = task(OpType::COALESCED, outputs, options.timeout, options.asyncOp);
  for (size_t i = 0; i < outputs.size(); ++i) {
    add_reduce_scatter(*call, executor_->member(), outputs[i], inputs[i], options.reduceOp);
  }
  return start(std::move(call));
}

}  // namespace oslo
