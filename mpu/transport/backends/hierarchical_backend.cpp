#include "mpu/transport/backends/hierarchical_backend.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/backend.h"

namespace oslo {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// The result of steps that run, or ran, on some thread.
class StepsWork final : public c10d::Work {
 public:
  explicit StepsWork(c10::intrusive_ptr<c10::ivalue::Future> future) : future_(std::move(future)) {}
  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override {
    return future_->hasError() ? future_->exception_ptr() : nullptr;
  }
  bool wait(std::chrono::milliseconds) override {
    future_->waitAndThrow();  // the steps have their own time limits
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// What Gloo takes: refused on every rank, rather than by the leaders alone when half is done.
void check_dtypes(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    switch (tensor.scalar_type()) {
      case at::kFloat:
      case at::kDouble:
      case at::kHalf:
      case at::kBFloat16:
      case at::kChar:
      case at::kByte:
      case at::kBool:
      case at::kInt:
      case at::kLong:
        break;
      default:
        oslo::fail("collectives between hosts do not take ", tensor.scalar_type(), " tensors");
    }
  }
}

void all_reduce_over(c10d::Backend& backend, const at::Tensor& tensor,
                     const c10d::AllreduceOptions& options) {
  Tensors tensors{tensor};
  backend.allreduce(tensors, options)->wait();
}

void broadcast_over(c10d::Backend& backend, const at::Tensor& tensor, int root,
                    std::chrono::milliseconds timeout) {
  Tensors tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.asyncOp = false;
  options.timeout = timeout;
  backend.broadcast(tensors, options)->wait();
}

void all_gather_over(c10d::Backend& backend, const at::Tensor& input, const Tensors& parts,
                     std::chrono::milliseconds timeout) {
  std::vector<Tensors> outputs{parts};
  Tensors inputs{input};
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  options.timeout = timeout;
  backend.allgather(outputs, inputs, options)->wait();
}

}  // namespace

HierarchicalBackend::HierarchicalBackend(int rank, int size, Levels levels)
    : c10d::Backend(rank, size), levels_(std::move(levels)), host_(levels_.host_of[rank]) {
  ranks_of_.resize(*std::max_element(levels_.host_of.begin(), levels_.host_of.end()) + 1);
  for (int r = 0; r < size; ++r) ranks_of_[levels_.host_of[r]].push_back(r);
}

HierarchicalBackend::~HierarchicalBackend() {
  // What has been started still arrives, unless this rank is failing.
  if (std::uncaught_exceptions() > 0) abort();
  shutdown();
  // A thread cannot end itself: a future's callback may have dropped the last reference.
  if (thread_->inThreadPool()) std::thread([thread = std::move(thread_)] {}).detach();
}

void HierarchicalBackend::abort() {
  levels_.inside->abort();
  levels_.network->abort();
}

void HierarchicalBackend::shutdown() {
  if (!thread_->inThreadPool()) thread_->waitWorkComplete();
}

void HierarchicalBackend::fail(const std::string& reason) {
  failure_ = reason;
  levels_.inside->abort();
  levels_.leaders.reset();  // closes its connections, which is what the other leaders hear
}

int HierarchicalBackend::inside_rank(int rank) const {
  const auto& ranks = ranks_of_[levels_.host_of[rank]];
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

WorkPtr HierarchicalBackend::run(Tensors outputs, std::function<void()> steps) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
  auto task = [this, future, outputs = std::move(outputs), steps = std::move(steps)] {
    const c10::AutoGradMode no_grad(false);
    try {
      OSLO_CHECK_AS(peer, failure_.empty(), "the group has failed: ", failure_);
      steps();
    } catch (const std::exception& error) {
      if (failure_.empty()) fail(error.what());
      future->setError(std::current_exception());
      return;
    }
    future->markCompleted(c10::IValue(outputs));
  };
  // A future's callback may start operations and wait for them: it is on the thread already.
  if (thread_->inThreadPool()) {
    task();
  } else {
    thread_->run(std::move(task));
  }
  return c10::make_intrusive<StepsWork>(std::move(future));
}

WorkPtr HierarchicalBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_dtypes(tensors);
  return run(tensors, [this, tensors, options] {
    c10d::AllreduceOptions inside = options, between = options;
    inside.asyncOp = between.asyncOp = false;
    const bool average = options.reduceOp == c10d::ReduceOp::AVG;
    if (average) inside.reduceOp = between.reduceOp = c10d::ReduceOp::SUM;
    // A factor counts once: it is in what the hosts come to.
    if (options.reduceOp == c10d::ReduceOp::PREMUL_SUM) between.reduceOp = c10d::ReduceOp::SUM;
    for (at::Tensor tensor : tensors) {
      all_reduce_over(*levels_.inside, tensor, inside);
      if (levels_.leaders) {
        all_reduce_over(*levels_.leaders, tensor, between);
        if (average && tensor.is_floating_point()) tensor.div_(getSize());
        if (average && !tensor.is_floating_point()) tensor.div_(getSize(), "trunc");
      }
      broadcast_over(*levels_.inside, tensor, 0, options.timeout);
    }
  });
}

void HierarchicalBackend::broadcast_now(const at::Tensor& tensor, int root,
                                        std::chrono::milliseconds timeout) const {
  const int root_host = levels_.host_of[root];
  if (host_ == root_host) broadcast_over(*levels_.inside, tensor, inside_rank(root), timeout);
  if (levels_.leaders) broadcast_over(*levels_.leaders, tensor, root_host, timeout);
  if (host_ != root_host) broadcast_over(*levels_.inside, tensor, 0, timeout);
}

WorkPtr HierarchicalBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_dtypes(tensors);
  const int64_t root = options.rootRank;
  OSLO_CHECK(root >= 0 && root < getSize(), "broadcast from rank ", root, " in a group of ",
             getSize());
  return run(tensors, [this, tensors, options] {
    for (const at::Tensor& tensor : tensors) {
      broadcast_now(tensor, static_cast<int>(options.rootRank), options.timeout);
    }
  });
}

WorkPtr HierarchicalBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  OSLO_CHECK(inputs.size() == 1 && outputs.size() == 1 &&
                 outputs[0].size() == static_cast<size_t>(getSize()),
             "all_gather takes one tensor and a list of ", getSize(), " to gather into");
  check_dtypes(inputs);
  check_dtypes(outputs[0]);
  return run(outputs[0], [this, outputs = outputs[0], input = inputs[0], options] {
    // The ranks of a host first, then each host's parts from its leader to the other ones.
    Tensors own;
    for (const int rank : ranks_of_[host_]) own.push_back(outputs[rank]);
    all_gather_over(*levels_.inside, input, own, options.timeout);
    for (size_t host = 0; host < ranks_of_.size(); ++host) {
      const bool elsewhere = static_cast<int>(host) != host_;
      for (const int rank : ranks_of_[host]) {
        at::Tensor part = outputs[rank];
        const at::Tensor moved = part.contiguous();  // Gloo moves no others
        if (levels_.leaders) {
          broadcast_over(*levels_.leaders, moved, static_cast<int>(host), options.timeout);
        }
        if (elsewhere) broadcast_over(*levels_.inside, moved, 0, options.timeout);
        if (!moved.is_same(part)) part.copy_(moved);
      }
    }
  });
}

WorkPtr HierarchicalBackend::barrier(const c10d::BarrierOptions& options) {
  return run({}, [this, options] {
    c10d::AllreduceOptions sum;
    sum.asyncOp = false;
    sum.timeout = options.timeout;
    const at::Tensor token = at::zeros({1}, at::kInt);
    all_reduce_over(*levels_.inside, token, sum);
    if (levels_.leaders) all_reduce_over(*levels_.leaders, token, sum);
    broadcast_over(*levels_.inside, token, 0, options.timeout);
  });
}

int64_t HierarchicalBackend::all_reduce_brings(int64_t bytes) const {
  const auto& inside = static_cast<const SharedMemoryBackend&>(*levels_.inside);
  const int64_t of_host = inside.all_reduce_brings(bytes);
  if (!levels_.leaders) return of_host + bytes;
  const int64_t hosts = levels_.leaders->getSize();
  return of_host + 2 * (hosts - 1) * bytes / hosts;
}

WorkPtr HierarchicalBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return levels_.network->reduce(tensors, options);
}
WorkPtr HierarchicalBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::GatherOptions& options) {
  return levels_.network->gather(outputs, inputs, options);
}
WorkPtr HierarchicalBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ScatterOptions& options) {
  return levels_.network->scatter(outputs, inputs, options);
}
WorkPtr HierarchicalBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  return levels_.network->_allgather_base(output, input, options);
}
WorkPtr HierarchicalBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  return levels_.network->_reduce_scatter_base(output, input, options);
}
WorkPtr HierarchicalBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                           std::vector<int64_t>& output_rows,
                                           std::vector<int64_t>& input_rows,
                                           const c10d::AllToAllOptions& options) {
  return levels_.network->alltoall_base(output, input, output_rows, input_rows, options);
}
WorkPtr HierarchicalBackend::send(Tensors& tensors, int rank, int tag) {
  if (levels_.host_of[rank] == host_) return levels_.inside->send(tensors, inside_rank(rank), tag);
  return levels_.network->send(tensors, rank, tag);
}
WorkPtr HierarchicalBackend::recv(Tensors& tensors, int rank, int tag) {
  if (levels_.host_of[rank] == host_) return levels_.inside->recv(tensors, inside_rank(rank), tag);
  return levels_.network->recv(tensors, rank, tag);
}

}  // namespace oslo
