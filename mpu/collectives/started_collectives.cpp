#include <functional>

#include "mpu/collectives/collective_node.h"
#include "mpu/collectives/collectives.h"
#include "mpu/collectives/divided_backward.h"

// A started collective is two nodes of the graph where its conjugate moves something: the one of
// `wait` starts the conjugate, the one of the start finishes it. The engine runs what forward did
// in between before the second: of what is ready it takes the latest first.
namespace oslo {
namespace {

using namespace collective_node;

/// The conjugate of a collective: started, and as one differentiable call.
struct Conjugate {
  std::function<Pending(const at::Tensor&)> start;
  std::function<at::Tensor(const at::Tensor&)> call;
};

/// Starts the conjugate. What it hands to the other node holds the place of the gradient that is to
/// come: its shape without its memory.
class WaitedBackward final : public CollectiveNode {
 public:
  WaitedBackward(GroupPtr group, std::shared_ptr<UnderWay> under_way, Conjugate conjugate,
                 at::IntArrayRef sizes)
      : CollectiveNode(std::move(group)),
        under_way_(std::move(under_way)),
        conjugate_(std::move(conjugate)),
        sizes_(sizes.begin(), sizes.end()) {}
  std::string name() const override { return "OsloWaitedBackward"; }
  at::Tensor backward(at::Tensor gradient) override {
    // A gradient of the gradient is asked for: the call records what it does.
    under_way_->push(records(gradient) ? Pending(conjugate_.call(gradient))
                                       : conjugate_.start(gradient));
    return place_of_gradient(gradient.options(), c10::fromIntArrayRefSlow(sizes_));
  }

 private:
  std::shared_ptr<UnderWay> under_way_;
  Conjugate conjugate_;
  c10::SmallVector<int64_t, 8> sizes_;
};

/// Of a conjugate that moves nothing: one call.
class CallBackward final : public CollectiveNode {
 public:
  CallBackward(GroupPtr group, std::function<at::Tensor(const at::Tensor&)> call)
      : CollectiveNode(std::move(group)), call_(std::move(call)) {}
  std::string name() const override { return "OsloCallBackward"; }
  at::Tensor backward(at::Tensor gradient) override { return call_(gradient); }

 private:
  std::function<at::Tensor(const at::Tensor&)> call_;
};

/// `started`, whose result is `input`'s in the graph by the node of `conjugate`.
Pending with_call(Pending started, const at::Tensor& input, const GroupPtr& group,
                  std::function<at::Tensor(const at::Tensor&)> conjugate) {
  const auto node = make_node<CallBackward>(group, std::move(conjugate));
  node->add_next_edge(torch::autograd::impl::gradient_edge(input));
  return std::move(started).then([node](at::Tensor output) {
    torch::autograd::set_history(output, node);
    return output;
  });
}

Pending with_conjugate(Pending started, const at::Tensor& input, const GroupPtr& group,
                       Conjugate conjugate) {
  const auto under_way = std::make_shared<UnderWay>();
  const auto first = make_node<WaitingBackward>(group, under_way);
  first->add_next_edge(torch::autograd::impl::gradient_edge(input));
  const auto place = first->add_input_metadata(input);
  const Asker asker = AskerScope::current();
  return std::move(started).then([=, sizes = input.sizes().vec()](at::Tensor output) {
    const AskerScope scope(asker);
    const auto last = make_node<WaitedBackward>(group, under_way, conjugate, sizes);
    last->add_next_edge({first, place});
    torch::autograd::set_history(output, last);
    return output;
  });
}

}  // namespace

Pending start_reduce_from(at::Tensor tensor, const GroupPtr& group) {
  if (group->size() == 1) return Pending(std::move(tensor));
  const bool recorded = records(tensor);
  const c10::AutoGradMode no_grad(false);
  Pending started = group->start_all_reduce(tensor.clone(at::MemoryFormat::Contiguous));
  if (!recorded) return started;
  return with_call(std::move(started), tensor, group,
                   [=](const at::Tensor& gradient) { return copy_to(gradient, group); });
}

Pending start_gather_from(const at::Tensor& tensor, const GroupPtr& group, int64_t dim,
                          c10::IntArrayRef sizes) {
  if (group->size() == 1) return Pending(tensor);
  const bool recorded = records(tensor);
  const c10::AutoGradMode no_grad(false);
  Pending started = group->start_all_gather(tensor, dim, sizes);
  if (!recorded) return started;
  return with_call(std::move(started), tensor, group,
                   [=, kept = sizes.vec()](const at::Tensor& gradient) {
                     return scatter_to(gradient, group, dim, kept);
                   });
}

Pending start_gather_and_copy(const at::Tensor& tensor, const GroupPtr& group, int64_t dim,
                              c10::IntArrayRef sizes) {
  if (group->size() == 1) return Pending(tensor);
  const bool recorded = records(tensor);
  const c10::AutoGradMode no_grad(false);
  Pending started = group->start_all_gather(tensor, dim, sizes);
  if (!recorded) return started;
  if (group->foresees_backward()) {
    at::Tensor whole = started.wait();
    const AskerScope of_gradient = AskerScope::of_gradient();
    group->count_reduce_scatter(whole, dim, sizes);
    started = Pending(std::move(whole));
  }
  const auto kept = sizes.vec();
  return with_conjugate(
      std::move(started), tensor, group,
      {[=](const at::Tensor& gradient) { return group->start_reduce_scatter(gradient, dim, kept); },
       [=](const at::Tensor& gradient) { return reduce_and_scatter(gradient, group, dim, kept); }});
}

Pending start_reduce_and_scatter(const at::Tensor& tensor, const GroupPtr& group, int64_t dim,
                                 c10::IntArrayRef sizes) {
  if (group->size() == 1) return Pending(tensor);
  const bool recorded = records(tensor);
  const c10::AutoGradMode no_grad(false);
  Pending started = group->start_reduce_scatter(tensor, dim, sizes);
  if (!recorded) return started;
  if (group->foresees_backward()) {
    at::Tensor part = started.wait();
    const AskerScope of_gradient = AskerScope::of_gradient();
    group->count_all_gather(part, dim, sizes);
    started = Pending(std::move(part));
  }
  const auto kept = sizes.vec();
  return with_conjugate(
      std::move(started), tensor, group,
      {[=](const at::Tensor& gradient) { return group->start_all_gather(gradient, dim, kept); },
       [=](const at::Tensor& gradient) { return gather_and_copy(gradient, group, dim, kept); }});
}

}  // namespace oslo
