#pragma once

#include <string>

namespace oslo {

// A process group's name in LibTorch is its key in the store, "tensor/0,1/0" (World::make_group).

/// The group's own name: "tensor".
inline std::string name_in_key(const std::string& key) {
  return key.substr(0, key.find('/'));
}

/// How many groups of that name and these ranks were made before it.
inline std::string count_in_key(const std::string& key) {
  return key.substr(key.find_last_of('/') + 1);
}

}  // namespace oslo
