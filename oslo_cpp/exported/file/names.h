#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace oslo::exported {

/// What stands behind a name of a graph. A number is one that is known when the model runs only: a
/// size, or what was computed from sizes.
enum class ValueKind { tensor, integer, real, truth };

/// "tensor", "integer", ...: for messages.
std::string_view kind_name(ValueKind kind);

/// The values of one run of a graph, by slot.
using Values = std::vector<c10::IValue>;

/// The names of one graph; each has a slot of its own. A graph inside another has names of its own.
class Names {
 public:
  struct Entry {
    int slot;
    ValueKind kind;
  };

  /// Gives `name` the next slot. `where` leads the message of the `Error` for a name that is there.
  int define(const std::string& name, ValueKind kind, const std::string& where);
  /// Throws `Error` for a name that nothing before this place of the graph defines.
  const Entry& find(const std::string& name, const std::string& where) const;
  int slots() const { return static_cast<int>(entries_.size()); }

 private:
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace oslo::exported
