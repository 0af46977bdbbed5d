#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace oslo {

/// What an `OffloadScope` moves.
class OffloadOptions {
 public:
  /// Memory of less than so many bytes stays on the device: a copy has a price of its own. Throws
  /// below 1.
  OffloadOptions& at_least(int64_t bytes);
  /// So many bytes stay on the device, those that were saved last, which backward uses first; and
  /// so many are brought back before they are used. Little hides no copies, much saves no memory:
  /// what one or two layers save is a good choice. Throws below 1.
  OffloadOptions& ahead(int64_t bytes);

  int64_t at_least() const { return at_least_; }
  int64_t ahead() const { return ahead_; }

 private:
  int64_t at_least_ = int64_t(1) << 20;
  int64_t ahead_ = int64_t(256) << 20;
};

namespace offload {
class Store;
}  // namespace offload

/// While alive, what operators of this thread save for their backward pass goes to the host's
/// memory (pinned, on a stream of its own beside what the device computes), and comes back while
/// backward runs, in the order in which it will be asked for; what Python's
/// `torch.autograd.graph.save_on_cpu` does at once, and waiting.
///
///   {
///     const oslo::OffloadScope scope(model->parameters());
///     loss = loss_of(model->forward(input));
///   }
///   loss.backward();
///
/// - `stays` is not moved: parameters, which are on the device anyway, with all their views. Nor
///   is what lies on the CPU, what is small, and what was saved last (`OffloadOptions`).
/// - Memory moves once, however many operators have saved it or views of it. Of what the program
///   still holds when backward asks for it, no second copy is made.
/// - On the device lies at any time what would lie there without it, or less: what has not been
///   moved yet, and what backward has not asked for yet.
/// - A saved tensor that is written afterwards is an error at its use. Backward may run on any
///   thread, twice (`retain_graph`), or never.
///
/// Scopes on one thread nest as a SavedTensorScope does: the innermost alone is asked, a
/// `checkpoint` inside of one keeps what it keeps itself. On the CPU it does nothing. Throws as
/// SavedTensorScope does.
class OffloadScope {
 public:
  explicit OffloadScope(const std::vector<at::Tensor>& stays, const OffloadOptions& options = {});
  ~OffloadScope();
  OffloadScope(const OffloadScope&) = delete;
  OffloadScope& operator=(const OffloadScope&) = delete;

  /// What has been moved to the host so far, in bytes.
  int64_t moved() const;

 private:
  struct Scopes;
  std::unique_ptr<Scopes> scopes_;
};

}  // namespace oslo
