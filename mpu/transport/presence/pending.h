#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace c10::ivalue {
struct Future;
}
namespace c10d {
class Work;
}

namespace oslo {

class Presence;

/// Whose operation it is: how its errors go on after its name.
struct OperationLabel {
  std::string where;     ///< " over group tensor (ranks 0 1) failed on rank 1 of the world"
  std::string suspects;  ///< what may be wrong with the other ranks
  std::shared_ptr<Presence> presence = nullptr;  ///< who knows which ones are there; may be null
};

/// A collective that has been started (MPI's non-blocking operations): its result can be had from
/// `wait` only, so that nobody reads it too early. Move-only. All ranks start a group's collectives
/// in one order; they may wait for them in any. A handle that is dropped does not end the
/// operation, whose memory lives until it is done; only its result and its error are lost. What it
/// reads must not be written to before `wait` has returned, which checks that. One thread at a
/// time.
class Pending {
 public:
  using Label = std::shared_ptr<const OperationLabel>;
  using Finish = std::function<at::Tensor(at::Tensor)>;

  /// One that is done already.
  explicit Pending(at::Tensor result);
  /// `written` is what the backend writes; `operation` lives as long as the program.
  Pending(c10::intrusive_ptr<c10d::Work> work, at::Tensor written, const char* operation,
          Label label);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  /// The result, when every rank has done its part. Throws what went wrong. Once only.
  at::Tensor wait();

  /// The same for LibTorch's callbacks, which wait for a future on a thread of the transport: its
  /// value is the result. An error names the operation and what it is `of`. Once only, and no
  /// `wait` then.
  c10::intrusive_ptr<c10::ivalue::Future> future(const char* of) &&;

  /// Whether `wait` would return at once. Says yes to what has failed, too.
  bool done() const;

  /// Has `wait` throw when `input` has been written to meanwhile.
  Pending reading(const at::Tensor& input) &&;

  /// Makes `finish`'s the result: it is called by `wait`, after what was there before.
  Pending then(Finish finish) &&;

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor written_;
  const char* operation_ = "";
  Label label_;
  Finish finish_;
  at::Tensor input_;
  int64_t version_ = 0;
  bool taken_ = false;
};

/// Waits; throws an `Error` that names `operation` and whose it is.
void wait_for(c10d::Work& work, std::string_view operation, const OperationLabel& label);

/// Throws that `Error` for what a transport said, with the rank whose failure came first where that
/// is known: a `PeerError` unless the transport refused what this rank did.
[[noreturn]] void fail_operation(std::string_view operation, const OperationLabel& label,
                                 const std::exception& error);

}  // namespace oslo
