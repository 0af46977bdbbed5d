#pragma once

#include <nlohmann/json_fwd.hpp>

namespace oslo {

/// What a load reads beside the tensors. Every setter returns the object, so that they chain.
class LoadOptions {
 public:
  /// Where what `SaveOptions::extra` gave is put, on every rank, once everything else has been
  /// read; a checkpoint without it is refused. Null: it is not read.
  LoadOptions& extra(nlohmann::json* extra) { return extra_ = extra, *this; }

  /// Whether floating-point values are converted to the model's types where those differ (float32
  /// weights into a bfloat16 model). Otherwise, and for all other types, that is refused.
  LoadOptions& convert(bool convert) { return convert_ = convert, *this; }

  nlohmann::json* extra() const { return extra_; }
  bool convert() const { return convert_; }

 private:
  bool convert_ = false;
  nlohmann::json* extra_ = nullptr;
};

}  // namespace oslo
