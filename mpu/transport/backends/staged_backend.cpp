#include "mpu/transport/backends/staged_backend.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <thread>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/transport/backends/staging.h"

namespace oslo {
namespace {

using Tensors = StagedBackend::Tensors;
using WorkPtr = StagedBackend::WorkPtr;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

/// The result of an operation that runs, or ran, on one of the lines.
class StagedWork final : public c10d::Work {
 public:
  StagedWork(int rank, c10d::OpType type, FuturePtr future)
      : Work(rank, type), future_(std::move(future)) {}
  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override {
    return future_->hasError() ? future_->exception_ptr() : nullptr;
  }
  bool wait(std::chrono::milliseconds) override {
    future_->waitAndThrow();  // `inner` has the time limit
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  FuturePtr getFuture() override { return future_; }

 private:
  FuturePtr future_;
};

Tensors hosts_of(const std::vector<Staging::Copy>& copies) {
  Tensors hosts;
  for (const auto& copy : copies) hosts.push_back(copy.host);
  return hosts;
}

/// Runs `steps` on `line`; what they throw is the future's error, and ends `inner`, so that the
/// other ranks hear of it.
WorkPtr run_on(c10::ThreadPool& line, int rank, c10d::OpType type, const Staging& staging,
               const Tensors& results, StagedBackend::BackendPtr inner,
               std::function<void(c10d::Backend& inner)> steps) {
  const FuturePtr future = staging.future();
  line.run(
      [staging, future, results, inner = std::move(inner), steps = std::move(steps)]() mutable {
        const c10::AutoGradMode no_grad(false);
        try {
          staging.make_current();
          steps(*inner);
          steps = nullptr;  // what it holds goes before others are told
          staging.complete(*future, results);
        } catch (const std::exception&) {
          inner->abort();
          future->setErrorIfNeeded(std::current_exception());
        }
      });
  return c10::make_intrusive<StagedWork>(rank, type, future);
}

const at::Tensor& only(const Tensors& tensors, const char* operation) {
  OSLO_CHECK(tensors.size() == 1, operation, " takes one tensor, and got ", tensors.size());
  return tensors[0];
}

}  // namespace

StagedBackend::StagedBackend(int rank, int size, BackendPtr inner, int64_t chunk_bytes)
    : Backend(rank, size), inner_(std::move(inner)), chunk_bytes_(chunk_bytes) {}

StagedBackend::~StagedBackend() {
  // What has been started still arrives, unless this rank is failing.
  if (std::uncaught_exceptions() > 0) abort();
  shutdown();
  for (auto& [_, line] : lines_) {
    // A thread cannot end itself: a future's callback may have dropped the last reference.
    if (line->inThreadPool()) std::thread([ended = std::move(line)] {}).detach();
  }
}

void StagedBackend::abort() {
  inner_->abort();
}

void StagedBackend::shutdown() {
  std::vector<Line> made;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [_, line] : lines_) made.push_back(line);
  }
  for (const Line& line : made) {
    if (!line->inThreadPool()) line->waitWorkComplete();
  }
}

/// The host's memory may be out: the other ranks must not wait for this one.
void StagedBackend::or_abort(const std::function<void()>& stage) {
  try {
    stage();
  } catch (const std::exception&) {
    abort();
    throw;
  }
}

/// A send waits for its receiver where it is large: those to other ranks must not wait with it.
c10::ThreadPool& StagedBackend::line_of(c10d::OpType direction, int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Line& line = lines_[{direction, peer}];
  if (!line) line = std::make_shared<c10::ThreadPool>(1);
  return *line;
}

WorkPtr StagedBackend::run(c10::ThreadPool& line, c10d::OpType type, Steps steps) {
  const c10::AutoGradMode no_grad(false);
  const auto& like = steps.inputs.empty() ? steps.outputs[0] : steps.inputs[0];
  const Staging staging(like.device());
  auto out = std::make_shared<std::vector<Staging::Copy>>();
  auto in = std::make_shared<std::vector<Staging::Copy>>();
  or_abort([&] {
    for (const at::Tensor& tensor : steps.inputs) out->push_back(staging.copy_out(tensor));
    for (const at::Tensor& tensor : steps.outputs) in->push_back(staging.room_for(tensor));
  });
  return run_on(line, rank_, type, staging, steps.outputs, inner_,
                [staging, out, in, move = std::move(steps.move)](c10d::Backend& inner) {
                  for (const auto& copy : *out) Staging::wait_out(copy);
                  Tensors inputs = hosts_of(*out), outputs = hosts_of(*in);
                  move(inner, inputs, outputs)->wait();
                  for (const auto& copy : *in) staging.copy_in(copy);
                });
}

WorkPtr StagedBackend::run_in_chunks(c10d::OpType type, const at::Tensor& tensor, bool reads,
                                     bool writes, MoveInPlace move) {
  const c10::AutoGradMode no_grad(false);
  OSLO_CHECK(tensor.is_non_overlapping_and_dense(),
             "a collective in place takes tensors without gaps, and this one of shape ",
             tensor.sizes(), " has strides ", tensor.strides());
  const Staging staging(tensor.device());
  // In the order in which it lies in memory.
  const at::Tensor flat = tensor.as_strided({tensor.numel()}, {1});
  const int64_t step = std::max<int64_t>(1, chunk_bytes_ / tensor.element_size());
  auto chunks = std::make_shared<std::vector<Staging::Copy>>();
  or_abort([&] {
    for (const at::Tensor& chunk : flat.split(step)) {
      chunks->push_back(reads ? staging.copy_out(chunk) : staging.room_for(chunk));
    }
  });
  return run_on(collectives(), rank_, type, staging, {tensor}, inner_,
                [staging, chunks, writes, move = std::move(move)](c10d::Backend& inner) {
                  for (const auto& chunk : *chunks) {
                    Staging::wait_out(chunk);
                    Tensors one{chunk.host};
                    move(inner, one)->wait();
                    if (writes) staging.copy_in(chunk);
                  }
                });
}

WorkPtr StagedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return run_in_chunks(
      c10d::OpType::ALLREDUCE, only(tensors, "all_reduce"), true, true,
      [options](c10d::Backend& inner, Tensors& chunk) { return inner.allreduce(chunk, options); });
}

WorkPtr StagedBackend::allreduce_coalesced(Tensors& tensors,
                                           const c10d::AllreduceCoalescedOptions& options) {
  return run(collectives(), c10d::OpType::ALLREDUCE_COALESCED,
             {tensors, tensors, [options](c10d::Backend& inner, Tensors& from, Tensors& to) {
                for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
                return inner.allreduce_coalesced(to, options);
              }});
}

WorkPtr StagedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const bool root = options.rootRank == rank_;
  return run_in_chunks(
      c10d::OpType::BROADCAST, only(tensors, "broadcast"), root, !root,
      [options](c10d::Backend& inner, Tensors& chunk) { return inner.broadcast(chunk, options); });
}

WorkPtr StagedBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) {
  only(inputs, "all_gather");
  return run(collectives(), c10d::OpType::ALLGATHER,
             {inputs, outputs.at(0), [options](c10d::Backend& inner, Tensors& from, Tensors& to) {
                std::vector<Tensors> parts{to};
                return inner.allgather(parts, from, options);
              }});
}

WorkPtr StagedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::AllgatherOptions& options) {
  return run(collectives(), c10d::OpType::_ALLGATHER_BASE,
             {{input}, {output}, [options](c10d::Backend& inner, Tensors& from, Tensors& to) {
                return inner._allgather_base(to[0], from[0], options);
              }});
}

WorkPtr StagedBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  only(outputs, "reduce_scatter");
  return run(collectives(), c10d::OpType::REDUCE_SCATTER,
             {inputs.at(0), outputs, [options](c10d::Backend& inner, Tensors& from, Tensors& to) {
                std::vector<Tensors> parts{from};
                return inner.reduce_scatter(to, parts, options);
              }});
}

WorkPtr StagedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
  return run(collectives(), c10d::OpType::_REDUCE_SCATTER_BASE,
             {{input}, {output}, [options](c10d::Backend& inner, Tensors& from, Tensors& to) {
                return inner._reduce_scatter_base(to[0], from[0], options);
              }});
}

WorkPtr StagedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                     std::vector<int64_t>& output_rows,
                                     std::vector<int64_t>& input_rows,
                                     const c10d::AllToAllOptions& options) {
  return run(collectives(), c10d::OpType::ALLTOALL_BASE,
             {{input},
              {output},
              [options, output_rows, input_rows](c10d::Backend& inner, Tensors& from,
                                                 Tensors& to) mutable {
                return inner.alltoall_base(to[0], from[0], output_rows, input_rows, options);
              }});
}

WorkPtr StagedBackend::barrier(const c10d::BarrierOptions& options) {
  // Among the collectives, as on the other ranks: `inner` takes them in one order.
  return run_on(collectives(), rank_, c10d::OpType::BARRIER, Staging(c10::Device(c10::kCPU)), {},
                inner_, [options](c10d::Backend& inner) { inner.barrier(options)->wait(); });
}

WorkPtr StagedBackend::send(Tensors& tensors, int to, int tag) {
  return run(
      line_of(c10d::OpType::SEND, to), c10d::OpType::SEND,
      {{only(tensors, "send")}, {}, [to, tag](c10d::Backend& inner, Tensors& from, Tensors&) {
         return inner.send(from, to, tag);
       }});
}

WorkPtr StagedBackend::recv(Tensors& tensors, int from, int tag) {
  return run(
      line_of(c10d::OpType::RECV, from), c10d::OpType::RECV,
      {{}, {only(tensors, "receive")}, [from, tag](c10d::Backend& inner, Tensors&, Tensors& to) {
         return inner.recv(to, from, tag);
       }});
}

}  // namespace oslo
