#include "tools/oslo/plan/exported_program.h"

#include <filesystem>
#include <iostream>
#include <system_error>

#include "tools/oslo/base/library_entry.h"

namespace oslo::tool {
namespace {

/// Null, and an exit code, where the file or the library is not there.
void* find_entry(const char* command, const std::string& path, const char* name, int& exit_code) {
  std::error_code unreadable;
  if (std::filesystem::is_regular_file(path, unreadable)) {
    return library_entry(command, name, exit_code);
  }
  std::cerr << "oslo " << command << ": there is no file " << path << "\n";
  exit_code = 127;
  return nullptr;
}

}  // namespace

bool is_exported(const std::string& program) {
  return std::filesystem::path(program).extension() == ".pt2";
}

int plan_exported(const std::vector<std::string>& words) {
  int exit_code = 0;
  void* const entry = find_entry("plan", words[0], "oslo_plan_exported", exit_code);
  if (entry == nullptr) return exit_code;
  std::vector<const char*> rest;
  for (size_t i = 1; i < words.size(); ++i) rest.push_back(words[i].c_str());
  using Plan = int (*)(const char*, int, const char* const*);
  return reinterpret_cast<Plan>(entry)(words[0].c_str(), static_cast<int>(rest.size()),
                                       rest.data());
}

int inspect_exported(const std::string& path) {
  int exit_code = 0;
  void* const entry = find_entry("inspect", path, "oslo_inspect_exported", exit_code);
  if (entry == nullptr) return exit_code;
  return reinterpret_cast<int (*)(const char*)>(entry)(path.c_str());
}

}  // namespace oslo::tool
