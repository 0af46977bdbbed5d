#include "mpu/group/group.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "mpu/base/error.h"
#include "mpu/base/foreign_scope.h"
#include "mpu/base/parts.h"
#include "mpu/base/time_limit.h"
#include "mpu/group/messages.h"
#include "mpu/transport/counted_process_group.h"
#include "mpu/transport/mover.h"

namespace oslo {
namespace {

c10d::ReduceOp operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::average:
      return c10d::ReduceOp::AVG;
    case Reduction::min:
      return c10d::ReduceOp::MIN;
    case Reduction::max:
      return c10d::ReduceOp::MAX;
    case Reduction::sum:
      break;
  }
  return c10d::ReduceOp::SUM;
}

const CountedProcessGroup* counted(const c10d::ProcessGroup& group) {
  return dynamic_cast<const CountedProcessGroup*>(&group);
}

std::shared_ptr<Ledger> ledger_of(const c10d::ProcessGroup& group) {
  const auto* own = counted(group);
  return own != nullptr ? own->ledger() : std::make_shared<Ledger>();
}

Pending::Label label_of(const std::string& name, const std::vector<int>& ranks, int rank,
                        const c10d::ProcessGroup& group) {
  const auto* own = counted(group);
  const std::string limit =
      own == nullptr
          ? ""
          : c10::str(" (the time limit is ", to_text(own->timeout()), ", see OSLO_TIMEOUT)");
  return std::make_shared<const OperationLabel>(OperationLabel{
      c10::str(" over group ", name, " (ranks ", ranks, ") failed on rank ", ranks[rank],
               " of the world"),
      c10::str("; another rank has ended, is late", limit, ", or did something else: "),
      own == nullptr ? nullptr : own->presence()});
}

/// Gloo rounds what it has added up to the tensor's type with every addend. Shared memory adds up
/// halves in fp32, and rounds once.
bool rounds_addends(Mover by, at::ScalarType type) {
  const bool half = type == at::kHalf || type == at::kBFloat16;
  return half && (by == Mover::gloo || by == Mover::two_levels);
}

}  // namespace

Group::Group(std::string name, std::vector<int> ranks, int rank,
             c10::intrusive_ptr<c10d::ProcessGroup> process_group)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      rank_(rank),
      mover_(mover_of(*process_group->getDefaultBackend())),
      process_group_(std::move(process_group)),
      ledger_(ledger_of(*process_group_)),
      label_(label_of(name_, ranks_, rank_, *process_group_)),
      messages_(std::make_shared<Messages>(
          MessageGroup{name_, ranks_, rank_, mover_, process_group_, ledger_, label_})) {}

Group::~Group() = default;

bool Group::silent(const at::Tensor& tensor) const {
  return mover_ == Mover::nothing || tensor.is_meta() || ForeignScope::active();
}

Mover Group::mover(const at::Tensor& tensor) const {
  if (tensor.device().is_cpu() || mover_ == Mover::nothing) return mover_;
  return tensor.is_meta() ? Mover::nccl : mover_of(backend(tensor));
}

c10d::Backend& Group::backend(const at::Tensor& tensor) const {
  if (tensor.device().is_cpu()) return *process_group_->getBackend(c10::kCPU);
  c10::intrusive_ptr<c10d::Backend> found;
  try {
    found = process_group_->getBackend(tensor.device().type());
  } catch (const c10::Error&) {
    fail("group ", name_, " of ranks ", ranks_, " has nothing that carries tensors on ",
         tensor.device(),
         ": not all of them had a GPU when it was made, or several shared one on "
         "different hosts, or this build is without NCCL (-DOSLO_CUDA=ON, docs/gpu.md); call "
         "oslo::local_device(world) on every rank before initialize");
  }
  return *found;
}

Pending Group::pending(c10::intrusive_ptr<c10d::Work> work, at::Tensor written,
                       const char* operation) {
  return {std::move(work), std::move(written), operation, label_};
}

void Group::count(const char* operation, int64_t elements, int64_t moved, const at::Tensor& like) {
  if (ForeignScope::active()) return;
  const auto size = static_cast<int64_t>(like.element_size());
  ledger_->record(operation, elements, elements * size, moved);
}

void Group::count_all_reduce(const at::Tensor& tensor, int64_t moved) {
  count("all_reduce", 2 * (size() - 1) * tensor.numel() / size(), moved, tensor);
}

void Group::count_all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes,
                             int64_t moved) {
  count("all_gather", parts::row_size(part, dim) * (parts::sum(sizes) - sizes[rank_]), moved, part);
}

void Group::count_reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes,
                                 int64_t moved) {
  count("reduce_scatter", parts::row_size(tensor, dim) * sizes[rank_] * (size() - 1), moved,
        tensor);
}

int64_t Group::all_reduce_brings(const at::Tensor& tensor) const {
  if (silent(tensor)) return 0;
  return oslo::all_reduce_brings(backend(tensor), mover(tensor),
                                 static_cast<int64_t>(tensor.nbytes()));
}

at::Tensor Group::all_reduce(at::Tensor tensor, Reduction reduction) {
  return begin_all_reduce(std::move(tensor), reduction, /*awaited=*/true).wait();
}

Pending Group::start_all_reduce(at::Tensor tensor, Reduction reduction) {
  return begin_all_reduce(std::move(tensor), reduction, /*awaited=*/false);
}

Pending Group::begin_all_reduce(at::Tensor tensor, Reduction reduction, bool awaited) {
  if (size() == 1) return Pending(std::move(tensor));
  tensor = parts::plain(tensor);
  const bool silently = silent(tensor);
  const bool widens = !silently && reduction == Reduction::sum &&
                      rounds_addends(mover(tensor), tensor.scalar_type());
  at::Tensor sum = widens ? tensor.to(at::kFloat) : tensor;
  count_all_reduce(tensor, all_reduce_brings(sum));
  if (silently || tensor.numel() == 0) return Pending(std::move(tensor));
  std::vector<at::Tensor> tensors{parts::as_real(sum)};
  c10d::AllreduceOptions options;
  options.asyncOp = !awaited;
  options.reduceOp = operation_of(reduction);
  Pending begun = pending(backend(tensor).allreduce(tensors, options), sum, "all_reduce");
  if (!widens) return begun;
  return std::move(begun).then([tensor](const at::Tensor& wide) { return tensor.copy_(wide); });
}

void Group::broadcast(at::Tensor& tensor, int root) {
  begin_broadcast(tensor, root, /*awaited=*/true).wait();
}

Pending Group::start_broadcast(at::Tensor tensor, int root) {
  return begin_broadcast(std::move(tensor), root, /*awaited=*/false);
}

Pending Group::begin_broadcast(at::Tensor tensor, int root, bool awaited) {
  if (size() == 1) return Pending(std::move(tensor));
  const int64_t elements = rank_ == root ? 0 : tensor.numel();
  const auto bytes = elements * static_cast<int64_t>(tensor.element_size());
  count("broadcast", elements, silent(tensor) ? 0 : bytes, tensor);
  if (silent(tensor) || tensor.numel() == 0) return Pending(std::move(tensor));
  std::vector<at::Tensor> tensors{parts::as_real(tensor)};
  c10d::BroadcastOptions options;
  options.asyncOp = !awaited;
  options.rootRank = root;
  return pending(backend(tensor).broadcast(tensors, options), tensor, "broadcast");
}

std::vector<int64_t> Group::exchange(int64_t value) {
  if (size() == 1) return {value};
  const std::vector<int64_t> ones(size(), 1);
  if (mover_ == Mover::nothing) return std::vector<int64_t>(size(), value);
  const at::Tensor all = all_gather(at::full({1}, value, at::kLong), 0, ones);
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + size()};
}

void Group::send(c10::ArrayRef<at::Tensor> tensors, int to, int tag) {
  messages_->send(tensors, to, tag);
}

PendingSend Group::start_send(std::vector<at::Tensor> tensors, int to, int tag) {
  return messages_->start_send(std::move(tensors), to, tag);
}

std::vector<at::Tensor> Group::receive(int from, int tag, c10::ArrayRef<at::Tensor> like) {
  return messages_->start_receive(from, tag, like).wait();
}

PendingMessage Group::start_receive(int from, int tag, c10::ArrayRef<at::Tensor> like) {
  return messages_->start_receive(from, tag, like);
}

}  // namespace oslo
