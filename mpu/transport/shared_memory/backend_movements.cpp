#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/arguments.h"
#include "mpu/transport/shared_memory/backend.h"
#include "mpu/transport/shared_memory/collective/executor.h"

namespace oslo {

using namespace shared_memory;
using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

namespace {

void add_all_gather(Task& task, const Member& member, const Tensors& outputs,
                    const at::Tensor& input) {
  check_movable(input);
  check_list(outputs, input, member.size(), "all_gather");
  OSLO_CHECK(outputs[member.rank()].numel() == input.numel(), "all_gather: this rank has ",
             input.numel(), " elements, and room for ", outputs[member.rank()].numel());
  const Buffers to = outputs_of(outputs);
  task.add(make_all_gather(member, Buffer::input(input), to), to);
}

void add_all_gather_into(Task& task, const Member& member, const at::Tensor& output,
                         const at::Tensor& input) {
  const Buffer from = Buffer::input(input);
  const Buffer to = Buffer::output(output, false);
  task.add(make_all_gather(member, from, parts_of(to, from, member.size(), "all_gather")), to);
}

}  // namespace

WorkPointer SharedMemoryBackend::broadcast(Tensors& tensors,
                                           const c10d::BroadcastOptions& options) {
  const CountedCall counted(*executor_);
  check_root(options.rootRank, options.rootTensor, size_);
  const at::Tensor& tensor = only(tensors, "broadcast");
  const bool root = options.rootRank == rank_;
  const Buffer buffer = root ? Buffer::input(tensor) : Buffer::output(tensor, false);
  auto call = task(OpType::BROADCAST, tensors, options.timeout, options.asyncOp);
  call->add(make_broadcast(executor_->member(), buffer, static_cast<int>(options.rootRank)),
            buffer);
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  const CountedCall counted(*executor_);
  auto call =
      task(OpType::ALLGATHER, only(outputs, "all_gather"), options.timeout, options.asyncOp);
  add_all_gather(*call, executor_->member(), outputs[0], only(inputs, "all_gather"));
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) {
  const CountedCall counted(*executor_);
  auto call = task(OpType::_ALLGATHER_BASE, {output}, options.timeout, options.asyncOp);
  add_all_gather_into(*call, executor_->member(), output, input);
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& options) {
  const CountedCall counted(*executor_);
  OSLO_CHECK(static_cast<int>(outputs.size()) == size_,
             "allgather_coalesced takes a list for each "
             "of ",
             size_, " ranks, and got ", outputs.size());
  Tensors flat;
  for (const Tensors& of_rank : outputs) {
    OSLO_CHECK(of_rank.size() == inputs.size(), "allgather_coalesced got ", inputs.size(),
               " inputs, and room for ", of_rank.size());
    flat.insert(flat.end(), of_rank.begin(), of_rank.end());
  }
  auto call = task(OpType::ALLGATHER_COALESCED, std::move(flat), options.timeout, options.asyncOp);
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_input;
    for (const Tensors& of_rank : outputs) of_input.push_back(of_rank[i]);
    add_all_gather(*call, executor_->member(), of_input, inputs[i]);
  }
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const CountedCall counted(*executor_);
  OSLO_CHECK(outputs.size() == inputs.size(), "allgather_into_tensor_coalesced got ",
             outputs.size(), " outputs and ", inputs.size(), " inputs");
  auto call = task(OpType::COALESCED, outputs, options.timeout, options.asyncOp);
  for (size_t i = 0; i < outputs.size(); ++i) {
    add_all_gather_into(*call, executor_->member(), outputs[i], inputs[i]);
  }
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::GatherOptions& options) {
  const CountedCall counted(*executor_);
  check_root(options.rootRank, 0, size_);
  const at::Tensor& input = only(inputs, "gather");
  check_movable(input);
  Tensors here;
  if (options.rootRank == rank_) {
    here = only(outputs, "gather");
    check_list(here, input, size_, "gather");
    OSLO_CHECK(here[rank_].numel() == input.numel(), "gather: the root has ", input.numel(),
               " elements, and room for ", here[rank_].numel());
  } else {
    OSLO_CHECK(outputs.empty(), "gather: only the root may give outputs");
  }
  auto call = task(OpType::GATHER, here, options.timeout, options.asyncOp);
  const Buffers to = outputs_of(here);
  call->add(make_gather(executor_->member(), Buffer::input(input), to,
                        static_cast<int>(options.rootRank)),
            to);
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ScatterOptions& options) {
  const CountedCall counted(*executor_);
  check_root(options.rootRank, 0, size_);
  const at::Tensor& output = only(outputs, "scatter");
  check_movable(output);
  Buffers from;
  if (options.rootRank == rank_) {
    check_list(only(inputs, "scatter"), output, size_, "scatter");
    from = inputs_of(inputs[0]);
  } else {
    OSLO_CHECK(inputs.empty(), "scatter: only the root may give inputs");
  }
  const Buffer to = Buffer::output(output, false);
  auto call = task(OpType::SCATTER, outputs, options.timeout, options.asyncOp);
  call->add(
      make_scatter(executor_->member(), std::move(from), to, static_cast<int>(options.rootRank)),
      to);
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_rows,
                                               std::vector<int64_t>& input_rows,
                                               const c10d::AllToAllOptions& options) {
  const CountedCall counted(*executor_);
  check_movable(output);
  check_list({input}, output, 1, "all_to_all");
  const Buffer from = Buffer::input(input);
  const Buffer to = Buffer::output(output, false);
  auto call = task(OpType::ALLTOALL_BASE, {output}, options.timeout, options.asyncOp);
  call->add(make_all_to_all(executor_->member(), parts_of(from, input, input_rows, size_),
                            parts_of(to, output, output_rows, size_),
                            input_rows.empty() && output_rows.empty()),
            to);
  return start(std::move(call));
}

WorkPointer SharedMemoryBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllToAllOptions& options) {
  const CountedCall counted(*executor_);
  OSLO_CHECK(!outputs.empty(), "all_to_all got no outputs");
  check_movable(outputs[0]);
  check_list(outputs, outputs[0], size_, "all_to_all");
  check_list(inputs, outputs[0], size_, "all_to_all");
  const Buffers to = outputs_of(outputs);
  auto call = task(OpType::ALLTOALL, outputs, options.timeout, options.asyncOp);
  call->add(make_all_to_all(executor_->member(), inputs_of(inputs), to, /*even=*/false), to);
  return start(std::move(call));
}

}  // namespace oslo
