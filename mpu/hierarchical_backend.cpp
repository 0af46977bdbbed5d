#include "mpu/hierarchical_backend.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

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

void all_reduce_now(c10d::Backend& backend, const at::Tensor& tensor,
                    const c10d::AllreduceOptions& options) {
  Tensors tensors{tensor};
  backend.allreduce(tensors, options)->wait();
}

void broadcast_over(c10d::Backend& backend, const at::Tensor& tensor, int root) {
  Tensors tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.asyncOp = false;
  backend.broadcast(tensors, options)->wait();
}

void all_gather_over(c10d::Backend& backend, const at::Tensor& input, const Tensors& parts) {
  std::vector<Tensors> outputs{parts};
  Tensors inputs{input};
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  backend.allgather(outputs, inputs, options)->wait();
}

}  // namespace

HierarchicalBackend::HierarchicalBackend(int rank, int size, Levels levels)
    : c10d::Backend(rank, size), levels_(std::move(levels)), host_(levels_.host_of[rank]) {
  ranks_of_.resize(*std::max_element(levels_.host_of.begin(), levels_.host_of.end()) + 1);
  for (int r = 0; r < size; ++r) ranks_of_[levels_.host_of[r]].push_back(r);
}

HierarchicalBackend::~HierarchicalBackend() {
  thread_.waitWorkComplete();
}

int HierarchicalBackend::inside_rank(int rank) const {
  const auto& ranks = ranks_of_[levels_.host_of[rank]];
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

WorkPtr HierarchicalBackend::run(bool caller_waits, Tensors outputs, std::function<void()> steps) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
  auto task = [future, outputs = std::move(outputs), steps = std::move(steps)] {
    const c10::AutoGradMode no_grad(false);
    try {
      steps();
      future->markCompleted(c10::IValue(outputs));
    } catch (...) {
      future->setError(std::current_exception());
    }
  };
  if (caller_waits) {
    thread_.waitWorkComplete();  // what was started before comes first
    task();
  } else {
    thread_.run(std::move(task));
  }
  return c10::make_intrusive<StepsWork>(std::move(future));
}

WorkPtr HierarchicalBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return run(!options.asyncOp, tensors, [this, tensors, options] {
    c10d::AllreduceOptions inside = options, between = options;
    inside.asyncOp = between.asyncOp = false;
    const bool average = options.reduceOp == c10d::ReduceOp::AVG;
    if (average) inside.reduceOp = between.reduceOp = c10d::ReduceOp::SUM;
    // A factor counts once: it is in what the hosts come to.
    if (options.reduceOp == c10d::ReduceOp::PREMUL_SUM) between.reduceOp = c10d::ReduceOp::SUM;
    for (const at::Tensor& tensor : tensors) {
      all_reduce_now(*levels_.inside, tensor, inside);
      if (levels_.leaders) {
        all_reduce_now(*levels_.leaders, tensor, between);
        if (average) const_cast<at::Tensor&>(tensor).div_(getSize());
      }
      broadcast_over(*levels_.inside, tensor, 0);
    }
  });
}

void HierarchicalBackend::broadcast_now(const at::Tensor& tensor, int root) const {
  const int root_host = levels_.host_of[root];
  if (host_ == root_host) broadcast_over(*levels_.inside, tensor, inside_rank(root));
  if (levels_.leaders) broadcast_over(*levels_.leaders, tensor, root_host);
  if (host_ != root_host) broadcast_over(*levels_.inside, tensor, 0);
}

WorkPtr HierarchicalBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return run(!options.asyncOp, tensors, [this, tensors, options] {
    for (const at::Tensor& tensor : tensors) {
      broadcast_now(tensor, static_cast<int>(options.rootRank));
    }
  });
}

WorkPtr HierarchicalBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  return run(!options.asyncOp, outputs.front(), [this, outputs = outputs.front(), inputs] {
    // The ranks of a host first, then each host's parts from its leader to the other ones.
    Tensors own;
    for (const int rank : ranks_of_[host_]) own.push_back(outputs[rank]);
    all_gather_over(*levels_.inside, inputs.front(), own);
    for (size_t host = 0; host < ranks_of_.size(); ++host) {
      for (const int rank : ranks_of_[host]) {
        // Parts may lie apart; what a backend moves does not.
        at::Tensor part = outputs[rank].contiguous();
        if (levels_.leaders) broadcast_over(*levels_.leaders, part, static_cast<int>(host));
        if (static_cast<int>(host) != host_) broadcast_over(*levels_.inside, part, 0);
        if (!part.is_same(outputs[rank])) const_cast<at::Tensor&>(outputs[rank]).copy_(part);
      }
    }
  });
}

WorkPtr HierarchicalBackend::barrier(const c10d::BarrierOptions& options) {
  return run(!options.asyncOp, {}, [this] {
    c10d::AllreduceOptions sum;
    sum.asyncOp = false;
    const at::Tensor token = at::zeros({1}, at::kInt);
    all_reduce_now(*levels_.inside, token, sum);
    if (levels_.leaders) all_reduce_now(*levels_.leaders, token, sum);
    broadcast_over(*levels_.inside, token, 0);
  });
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
  return levels_.network->send(tensors, rank, tag);
}
WorkPtr HierarchicalBackend::recv(Tensors& tensors, int rank, int tag) {
  return levels_.network->recv(tensors, rank, tag);
}

}  // namespace oslo
