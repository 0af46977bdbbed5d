#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace oslo::test {

/// Of this library's segments, as they stand in /dev/shm. Other programs' names may come and go
/// meanwhile.
inline std::set<std::string> shared_memory_names() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("oslo-")) names.insert(name);
  }
  return names;
}

}  // namespace oslo::test
