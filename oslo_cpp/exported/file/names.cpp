#include "oslo_cpp/exported/file/names.h"

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo::exported {

std::string_view kind_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::tensor:
      return "tensor";
    case ValueKind::integer:
      return "integer";
    case ValueKind::real:
      return "real number";
    case ValueKind::truth:
      return "truth value";
  }
  return "value";
}

int Names::define(const std::string& name, ValueKind kind, const std::string& where) {
  const auto [entry, fresh] = entries_.try_emplace(name, Entry{slots(), kind});
  OSLO_CHECK_AS(file, fresh, where, ": the name '", printable(name), "' has a value already");
  return entry->second.slot;
}

const Names::Entry& Names::find(const std::string& name, const std::string& where) const {
  const auto found = entries_.find(name);
  OSLO_CHECK_AS(file, found != entries_.end(), where, ": nothing before it gives '",
                printable(name), "' a value");
  return found->second;
}

}  // namespace oslo::exported
