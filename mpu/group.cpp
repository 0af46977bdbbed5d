#include "mpu/group.h"

#include <ATen/ATen.h>

#include <numeric>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "mpu/error.h"
#include "mpu/transport/process_group.h"

namespace oslo {
namespace {

int64_t sum(c10::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

int64_t start_of(c10::IntArrayRef sizes, int rank) {
  return sum(sizes.slice(0, rank));
}

at::Tensor resized(const at::Tensor& like, int64_t dim, int64_t size) {
  auto shape = like.sizes().vec();
  shape[dim] = size;
  return at::empty(shape, like.options());
}

/// Elements beside one element of `dim`; also right when this rank has none of them.
int64_t row_size(const at::Tensor& tensor, int64_t dim) {
  int64_t elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) elements *= d == dim ? 1 : tensor.size(d);
  return elements;
}

/// What backends can read: contiguous, with no conjugation or sign left to do.
at::Tensor plain(const at::Tensor& tensor) {
  if (!tensor.is_conj() && !tensor.is_neg()) return tensor.contiguous();
  return tensor.resolve_conj().resolve_neg().contiguous();
}

/// Backends know no complex numbers: the same memory as pairs of real ones.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

/// The ranks' parts of `whole`, as views of it.
std::vector<at::Tensor> as_real_parts(const at::Tensor& whole, int64_t dim,
                                      c10::IntArrayRef sizes) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : whole.split_with_sizes(sizes, dim)) parts.push_back(as_real(part));
  return parts;
}

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

std::shared_ptr<Ledger> ledger_of(const c10d::ProcessGroup& group) {
  const auto* counted = dynamic_cast<const CountedProcessGroup*>(&group);
  return counted != nullptr ? counted->ledger() : std::make_shared<Ledger>();
}

/// Options of an operation that its caller waits for at once.
template <typename Options>
Options waited_for() {
  Options options;
  options.asyncOp = false;
  return options;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

Group::Group(std::string name, std::vector<int> ranks, int rank,
             c10::intrusive_ptr<c10d::ProcessGroup> process_group)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      rank_(rank),
      fake_(process_group->getDefaultBackend()->getBackendName() == "fake"),
      takes_uneven_parts_(process_group->getDefaultBackend()->getBackendName() == "shm"),
      process_group_(std::move(process_group)),
      ledger_(ledger_of(*process_group_)) {}

Group::~Group() = default;

bool Group::silent(const at::Tensor& tensor) const {
  return fake_ || tensor.is_meta();
}

c10d::Backend& Group::backend(const at::Tensor& tensor) const {
  return *process_group_->getBackend(tensor.device().type());
}

void Group::count(const char* operation, int64_t elements, const at::Tensor& like) {
  ledger_->record(operation, elements, elements * static_cast<int64_t>(like.element_size()));
}

void Group::count_all_reduce(const at::Tensor& tensor) {
  count("all_reduce", 2 * (size() - 1) * tensor.numel() / size(), tensor);
}

void Group::count_all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes) {
  count("all_gather", row_size(part, dim) * (sum(sizes) - sizes[rank_]), part);
}

void Group::count_reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes) {
  count("reduce_scatter", row_size(tensor, dim) * sizes[rank_] * (size() - 1), tensor);
}

void Group::wait(const c10::intrusive_ptr<c10d::Work>& work, const char* operation) const {
  try {
    work->wait();
  } catch (const std::exception& error) {
    fail(operation, " over group ", name_, " (ranks ", ranks_, ") failed on rank ", ranks_[rank_],
         " of the world; another rank has ended, is late, or did something else: ",
         first_line(error.what()));
  }
}

at::Tensor Group::all_reduce(at::Tensor tensor, Reduction reduction) {
  if (size() == 1) return tensor;
  tensor = plain(tensor);
  count_all_reduce(tensor);
  if (silent(tensor) || tensor.numel() == 0) return tensor;
  std::vector<at::Tensor> tensors{as_real(tensor)};
  auto options = waited_for<c10d::AllreduceOptions>();
  options.reduceOp = operation_of(reduction);
  wait(backend(tensor).allreduce(tensors, options), "all_reduce");
  return tensor;
}

c10::intrusive_ptr<c10d::Work> Group::start_all_reduce(at::Tensor& tensor) {
  if (size() > 1) count_all_reduce(tensor);
  std::vector<at::Tensor> tensors{as_real(tensor)};
  return backend(tensor).allreduce(tensors);
}

std::vector<at::Tensor> Group::gather_parts(const at::Tensor& part, int64_t dim,
                                            c10::IntArrayRef sizes) {
  // Pad to the largest, cut afterwards.
  const int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  at::Tensor padded = plain(part);
  if (part.size(dim) != largest) {
    padded = resized(part, dim, largest);
    padded.narrow(dim, 0, part.size(dim)).copy_(part);
  }
  std::vector<at::Tensor> inputs{as_real(padded)}, parts;
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int r = 0; r < size(); ++r) {
    parts.push_back(at::empty_like(padded));
    outputs[0].push_back(as_real(parts[r]));
  }
  if (padded.numel() > 0) {
    wait(backend(padded).allgather(outputs, inputs, waited_for<c10d::AllgatherOptions>()),
         "all_gather");
  }
  for (int r = 0; r < size(); ++r) parts[r] = parts[r].narrow(dim, 0, sizes[r]);
  return parts;
}

at::Tensor Group::all_gather(const at::Tensor& part, int64_t dim, c10::IntArrayRef sizes) {
  if (size() == 1) return part;
  if (dim < 0) dim += part.dim();
  OSLO_CHECK(static_cast<int>(sizes.size()) == size() && part.size(dim) == sizes[rank_],
             "all_gather over ", name_, ": this rank's part has ", part.size(dim),
             " along dimension ", dim, ", the layout says ", sizes);
  count_all_gather(part, dim, sizes);
  if (silent(part)) return resized(part, dim, sum(sizes)).zero_();
  if (takes_uneven_parts_ && part.device().is_cpu()) {
    at::Tensor whole = resized(part, dim, sum(sizes));
    std::vector<at::Tensor> inputs{as_real(plain(part))};
    std::vector<std::vector<at::Tensor>> outputs{as_real_parts(whole, dim, sizes)};
    if (whole.numel() > 0) {
      wait(backend(whole).allgather(outputs, inputs, waited_for<c10d::AllgatherOptions>()),
           "all_gather");
    }
    return whole;
  }
  return at::cat(gather_parts(part, dim, sizes), dim);
}

at::Tensor Group::reduce_scatter(const at::Tensor& tensor, int64_t dim, c10::IntArrayRef sizes) {
  if (size() == 1) return tensor;
  if (dim < 0) dim += tensor.dim();
  OSLO_CHECK(tensor.size(dim) == sum(sizes), "reduce_scatter over ", name_, ": dimension ", dim,
             " has ", tensor.size(dim), ", the ranks' parts ", sizes, " do not add up to it");
  count_reduce_scatter(tensor, dim, sizes);
  const int64_t start = start_of(sizes, rank_);
  if (silent(tensor)) return tensor.narrow(dim, start, sizes[rank_]).contiguous();
  at::Tensor buffer = plain(tensor);
  if (takes_uneven_parts_ && buffer.device().is_cpu()) {
    at::Tensor own = resized(tensor, dim, sizes[rank_]);
    std::vector<at::Tensor> outputs{as_real(own)};
    std::vector<std::vector<at::Tensor>> inputs{as_real_parts(buffer, dim, sizes)};
    if (buffer.numel() > 0) {
      wait(
          backend(buffer).reduce_scatter(outputs, inputs, waited_for<c10d::ReduceScatterOptions>()),
          "reduce_scatter");
    }
    return own;
  }
  if (buffer.is_same(tensor)) buffer = buffer.clone();
  if (buffer.numel() > 0) {
    // Gloo has no reduce-scatter of its own (it all-reduces inside), and parts may be uneven.
    std::vector<at::Tensor> tensors{as_real(buffer)};
    wait(backend(buffer).allreduce(tensors, waited_for<c10d::AllreduceOptions>()),
         "reduce_scatter");
  }
  return buffer.narrow(dim, start, sizes[rank_]).contiguous();
}

void Group::broadcast(at::Tensor& tensor, int root) {
  if (size() == 1) return;
  count("broadcast", rank_ == root ? 0 : tensor.numel(), tensor);
  if (silent(tensor) || tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors{as_real(tensor)};
  auto options = waited_for<c10d::BroadcastOptions>();
  options.rootRank = root;
  wait(backend(tensor).broadcast(tensors, options), "broadcast");
}

std::vector<int64_t> Group::exchange(int64_t value) {
  if (size() == 1) return {value};
  const std::vector<int64_t> ones(size(), 1);
  if (fake_) return std::vector<int64_t>(size(), value);
  const at::Tensor all = all_gather(at::full({1}, value, at::kLong), 0, ones);
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + size()};
}

}  // namespace oslo
