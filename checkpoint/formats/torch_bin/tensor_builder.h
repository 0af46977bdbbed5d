#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/torch_bin/pickle_value.h"
#include "checkpoint/formats/torch_bin/storage_loader.h"

namespace oslo::pickle {

/// Makes storages and tensors from what a `torch.save` pickle says of them. Every method throws
/// `Error`, starting with the file's name, for what does not fit.
class TensorBuilder {
 public:
  TensorBuilder(const std::string& file, const StorageLoader& load_storage)
      : file_(file), load_storage_(load_storage) {}

  /// The meaning of `module.name`; refuses every name that a state_dict does not need.
  Global find_global(std::string_view module, std::string_view name) const;
  /// The storage of a persistent id ("storage", class, key, device, elements).
  TypedStorage load(const Value& id) const;
  /// `_rebuild_tensor_v2(*arguments)`, or `_v3` where the dtype is given beside the storage.
  at::Tensor build(const std::vector<Value>& arguments, bool dtype_given) const;

 private:
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail_as(ErrorKind::file, file_, ": ", parts...);
  }
  template <typename T>
  const T& as(const Value& value, const char* what) const {
    return pickle::as<T>(value, what, file_);
  }
  std::vector<int64_t> sizes(const Value& value, const char* what) const;

  const std::string& file_;
  const StorageLoader& load_storage_;
};

}  // namespace oslo::pickle
