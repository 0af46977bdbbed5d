#include "checkpoint/formats/tensors/state_dict.h"

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
StateDict::StateDict(std::initializer_list<Entry> entries) {
  for (const Entry& entry : entries) {
    insert(entry.first, entry.second);
  }
}

void StateDict::insert(std::string name, at::Tensor tensor) {
  OSLO_CHECK(is_utf8(name) && name.find('\0') == std::string::npos, "the tensor name '",
             printable(name), "' is not valid UTF-8 without NUL; rename the tensor");
  OSLO_CHECK(tensor.defined(), "the tensor '", name, "' is undefined; leave it out of the state");
  const bool fresh = index_.emplace(name, entries_.size()).second;
  OSLO_CHECK(fresh, "the tensor name '", name, "' appears twice in one state; names must differ");
  entries_.emplace_back(std::move(name), std::move(tensor));
}

const at::Tensor* StateDict::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const at::Tensor& StateDict::at(const std::string& name) const {
  const at::Tensor* tensor = find(name);
  OSLO_CHECK(tensor != nullptr, "the state has no tensor '", name, "' among its ", size());
  return *tensor;
}

}  // namespace oslo
