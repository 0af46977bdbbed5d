#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oslo {

/// Tensors by name, in the order they were inserted: what a checkpoint file holds, and what every
/// file format of this folder writes and reads. Two names may share one tensor or one storage.
class StateDict {
 public:
  using Entry = std::pair<std::string, at::Tensor>;

  StateDict() = default;
  /// The entries in their order; throws as `insert` does.
  StateDict(std::initializer_list<Entry> entries);

  /// Appends an entry. Throws `Error` on a name that is already there, on a name that is not UTF-8
  /// (no format could store it) and on an undefined tensor.
  void insert(std::string name, at::Tensor tensor);

  /// The tensor of `name`, or null where there is none.
  const at::Tensor* find(const std::string& name) const;
  /// The tensor of `name`; throws `Error` naming it where there is none.
  const at::Tensor& at(const std::string& name) const;
  bool contains(const std::string& name) const { return find(name) != nullptr; }

  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  std::vector<Entry>::const_iterator begin() const { return entries_.begin(); }
  std::vector<Entry>::const_iterator end() const { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace oslo
