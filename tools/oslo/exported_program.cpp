#include "tools/oslo/exported_program.h"

#include <dlfcn.h>

#include <filesystem>
#include <iostream>
#include <system_error>

namespace oslo::tool {
namespace {

/// A function of liboslo_cpp, which lies beside this command; null, and an exit code, where the
/// file or the library is not there.
void* find_entry(const char* command, const std::string& path, const char* name, int& exit_code) {
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(path, unreadable)) {
    std::cerr << "oslo " << command << ": there is no file " << path << "\n";
    exit_code = 127;
    return nullptr;
  }
  void* const library = dlopen(OSLO_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
  void* const entry = library == nullptr ? nullptr : dlsym(library, name);
  if (entry == nullptr) {
    std::cerr << "oslo " << command << ": cannot load " << OSLO_LIBRARY << ": " << dlerror()
              << "\n";
    exit_code = 126;
  }
  return entry;
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
