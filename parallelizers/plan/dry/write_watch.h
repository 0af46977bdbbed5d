#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Sees which parameters and buffers of a model a run writes to: by an operator, also through a
/// view or `data()`, or by `set_data`. Of those with content it keeps what they held before the
/// first write, so that it takes no memory where nothing is written. Not seen: writes through a
/// pointer, and running statistics, which batch norm updates beside its results. Built on
/// LibTorch's `RecordFunction`, for the thread that made it.
class WriteWatch {
 public:
  explicit WriteWatch(const ModelView& model);
  /// Puts everything back.
  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  /// Names of what was written since it was made.
  std::set<std::string> written() const;

 private:
  struct Watched {
    std::string name;
    at::Tensor tensor;
    at::Tensor memory;   ///< what it lay in, in its shape
    at::Tensor content;  ///< what was there; undefined before the first write
    bool written = false;
    int64_t version = 0;  ///< of a shape, which `set_data` counts as a write
  };
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function);
  void look_at(const at::RecordFunction& function);
  void before_write(const at::Tensor& target);
  bool moved(const Watched& each) const;

  std::vector<Watched> watched_;
  std::multimap<const void*, size_t> by_identity_;
  WriteWatch* outer_;
  at::CallbackHandle handle_;
};

/// A forward that writes to a parameter or buffer in its first run only, and again when that is put
/// back, remembers in the tensor that it did: nothing is lost. One that does not write again
/// remembers it in a plain member, which nobody can put back: the first real forward would go
/// without. Throws then, naming the tensors.
class FirstWrites {
 public:
  void ran(const std::set<std::string>& written, bool to_its_end);
  /// Whether another run has to show that what was written is written again.
  bool open() const { return !open_.empty(); }
  void check() const;

 private:
  std::set<std::string> open_;  ///< written, and not seen to be written again
  std::set<std::string> once_;
  std::set<std::string> again_;
};

/// Runs the example, tells `writes` what it wrote to, and puts that back.
void run_watched(const ModelView& model, const std::function<void()>& example, FirstWrites& writes);

}  // namespace oslo
