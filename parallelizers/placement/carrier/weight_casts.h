#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oslo {

/// A model's weights in the type that autocast computes products in. LibTorch's cache of casts is
/// one for the process, by addresses, and whoever clears it empties it for all ranks that are
/// threads; this one is the model's on this rank.
///
/// What is recorded of a cast is one node in the graph, through which the gradients of all its uses
/// come, as from LibTorch's cache: they are added up in the narrow type there, and arrive at the
/// parameter in its own. A backward pass through it ends it, so that forwards whose passes lie
/// apart share none. A write to the weight ends it, too.
///
/// With `keeps_copies` (master weights) the numbers are made once after each write, and live until
/// the next, gradients recorded or not; otherwise they live as long as a graph has them, and
/// nothing is kept where none is recorded.
class WeightCasts {
 public:
  explicit WeightCasts(bool keeps_copies);
  ~WeightCasts();
  WeightCasts(const WeightCasts&) = delete;
  WeightCasts& operator=(const WeightCasts&) = delete;

  /// The marked `parameter` in `type`, marked as it is. Undefined where it is to be cast as any
  /// other tensor: it is no leaf, is not here, has the type already. Thread safe.
  at::Tensor of(const at::Tensor& parameter, at::ScalarType type);
  /// The same of `view`, an ordinary tensor over the parameter's memory (`weight.t()`, which C++'s
  /// `nn::Linear` multiplies by): the numbers are a view of the parameter's cast, with strides as a
  /// cast of `view` has them. Of what is recorded every cast is a node of its own, as in LibTorch,
  /// whose cache has leaves alone. Undefined, too, where the view leaves gaps in memory.
  at::Tensor of_view(const at::Tensor& parameter, const at::Tensor& view, at::ScalarType type);

  /// The model's author had `parameter`, which is kept in fp32, in a narrower `type`: there
  /// operators of the forward read it in that.
  void set_type(const at::Tensor& parameter, at::ScalarType type);
  /// All of which something was said, with that type.
  std::vector<std::pair<at::Tensor, at::ScalarType>> types();
  /// What they read in the place of `tensor`: the tensor itself where nothing else was said.
  at::Tensor read(const at::Tensor& tensor);

  /// The program has got `data`, whose writes are counted apart, over the memory of `parameter`
  /// (`p.data()`, by which LibTorch's SGD writes): they are writes to the parameter.
  void count_writes_of(const at::Tensor& data, const at::Tensor& parameter);

 private:
  struct Content;
  struct Entry;

  /// Whether the parameter's cast is one of those here.
  bool casts(const at::Tensor& parameter, at::ScalarType type, bool records) const;
  /// The mutex is held. The entry of what the parameter holds now, and its numbers in the type.
  Entry& entry_of(const at::Tensor& parameter, at::ScalarType type);
  at::Tensor numbers_in(Entry& entry, const at::Tensor& parameter);
  bool written_by_others(const c10::TensorImpl* parameter);

  const bool keeps_copies_;
  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  /// Other tensors over a parameter's memory that count writes of their own.
  struct Others {
    void look();

    bool written = false;                                           ///< since a cast was made
    std::vector<std::pair<c10::VariableVersion, uint32_t>> counts;  ///< each as it was seen last
  };
  std::unordered_map<const c10::TensorImpl*, Others> others_;
  struct Type {
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;  ///< its address is nobody else's
    at::ScalarType type;
  };
  std::unordered_map<const c10::TensorImpl*, Type> types_;  ///< of `set_type`
};

}  // namespace oslo
